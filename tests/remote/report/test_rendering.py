"""Templates: text from others is data, and what is missing is an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from rankdad.remote.report.rendering import render


def test_html_escapes_values_in_text_and_attributes_and_markdown_does_not(tmp_path: Path) -> None:
    for name in ("page.html", "page.md"):
        (tmp_path / name).write_text(
            '{% macro cell(x) %}<b title="{{ x }}">{{ x }}</b>{% endmacro %}{{ cell(value) }}\n'
        )
    hostile = "\"><script>'&"
    assert render(tmp_path, "page.md", value=hostile) == f'<b title="{hostile}">{hostile}</b>\n'
    escaped = "&#34;&gt;&lt;script&gt;&#39;&amp;"
    assert render(tmp_path, "page.html", value=hostile) == f'<b title="{escaped}">{escaped}</b>\n'


def test_a_missing_value_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("{{ run.status }}")
    with pytest.raises(UndefinedError, match="status"):
        render(tmp_path, "page.html", run={})
