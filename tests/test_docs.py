"""The documentation's links lead somewhere, and its threat model knows every limit that a site can set."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "docker" / "README.md"]


def anchors(page: Path) -> set[str]:
    """Return what a page's headings are called in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    for path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def test_the_threat_model_is_linked_and_names_every_limit_of_a_policy() -> None:
    operation, model = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("operation.md", "security.md"))
    policy = operation[operation.index("the policy\n") :]
    fields = re.findall(r"^\| `(\w+)` \|", policy, re.MULTILINE)
    assert "min_rows" in fields
    assert [field for field in fields if f"`{field}`" not in model] == []
    assert "(docs/security.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(security.md)" in operation
