"""How Sphinx makes the site: `make docs`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from sphinx.application import Sphinx

import rankdad
from rankdad.common import __version__
from rankdad.common.errors import STATUSES
from rankdad.common.spec import RunSpec

HERE = Path(__file__).parent

project, author, release = "rankdad", "the authors of rankdad", __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
EXTRA = HERE / "generated" / "extra"  # files that the site has beside its pages
EXTRA.mkdir(parents=True, exist_ok=True)
html_extra_path = ["generated/extra"]
html_theme, html_title = "furo", f"rankdad {release}"
exclude_patterns = ["_build", "generated/extra"]
suppress_warnings = ["myst.header"]  # pages that are made begin below the first level
myst_heading_anchors = 4
autodoc_typehints, autodoc_member_order = "description", "bysource"
napoleon_use_rtype = False


def commands() -> str:
    """Return the page of the commands, from their own help."""
    made = [sys.executable, "-m", "typer", "rankdad.__main__", "utils", "docs", "--name", "rankdad"]
    text = subprocess.run(made, capture_output=True, text=True, check=True).stdout
    return "# Commands\n\n" + re.sub(r"^#", "##", text, flags=re.MULTILINE)


def errors() -> str:
    """Return the page of the errors: each code with what it says; … stands for what a run adds."""
    by_code: dict[str, list[str]] = {}
    for line in (HERE.parent / "tests" / "errors" / "sentences.txt").read_text(encoding="utf-8").splitlines():
        code, _, sentence = line.partition("\t")
        if code != "ValueError":
            by_code.setdefault(code, []).append(sentence)
    lines = ["# Errors", "", "## Exit status", "", "| status | meaning |", "|---|---|"]
    lines += [f"| {status} | {meaning} |" for status, meaning in STATUSES.items()]
    lines += [
        "",
        "## Codes",
        "",
        "Every error has a code, which stays. `…` stands for names and numbers of the case.",
        "",
    ]
    for code, sentences in sorted(by_code.items()):
        lines += [f"### `{code}`", "", *(f"    {sentence}" for sentence in sentences), ""]
    return "\n".join(lines)


def api() -> str:
    """Return the page of the names that other programs may use."""
    lines = ["# Python", "", "All names can be imported from `rankdad`.", ""]
    for name in rankdad.__all__:
        if name != "__version__":
            kind = "autoclass" if isinstance(getattr(rankdad, name), type) else "autofunction"
            lines += [f"## {name}", "", "```{eval-rst}", f".. {kind}:: rankdad.{name}"]
            lines += ["   :members:", "   :inherited-members: Exception, BaseModel"] if kind == "autoclass" else []
            lines += ["```", ""]
    return "\n".join(lines)


def write_pages(_: Sphinx) -> None:
    """Write the pages that are made from the code, and the schema of a run."""
    folder = HERE / "generated"
    folder.mkdir(exist_ok=True)
    for name, page in (("commands", commands()), ("errors", errors()), ("python", api())):
        (folder / f"{name}.md").write_text(page, encoding="utf-8")
    schema = json.dumps(RunSpec.model_json_schema(), indent=2)
    (EXTRA / "spec.schema.json").write_text(schema, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Take part in the making of the site."""
    app.connect("builder-inited", write_pages)
