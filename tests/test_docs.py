"""The documentation's links lead somewhere, and its threat model knows every limit that a site can set."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from rankdad.common.policy import Policy
from rankdad.common.spec import RunSpec
from tests import pages, words

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not {"_build", "generated"} & {*page.parts}),
]
MOST_WORDS = 25000  # of pages that people write: may only fall
NOT_RUN = 12  # blocks that need a cluster, a registry or systemd, or are no commands: may only fall
CSV = {"reader": "csv", "file": "t.csv", "features": ["age"], "label": "y", "missing": "impute"}
NO_REFUSALS = {"cannot-read", "cannot-write", "local-steps", "log-there-already"}  # codes and names beside those


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


def test_the_page_of_the_policy_has_every_field_and_its_default() -> None:
    page = (ROOT / "docs/reference/policy.md").read_text(encoding="utf-8")
    fields = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", page, re.MULTILINE))
    assert {field: json.loads(default) for field, default in fields.items()} == Policy().model_dump(mode="json")


def test_the_page_of_the_policy_has_every_refusal() -> None:
    page = (ROOT / "docs/reference/policy.md").read_text(encoding="utf-8")
    table = page[page.index("## Refusals") : page.index("## Counted numbers")]
    judging = (
        "common/policy_checks.py",
        "common/policy_lists.py",
        "common/refusals.py",
        "local/admission.py",
        "local/sums.py",
    )
    keeping = ("cells", "assigning", "log", "log_file", "run_log", "disclosed")
    sources = [ROOT / name for name in (*judging, *(f"local/privacy/{name}.py" for name in keeping))]
    code = "\n".join(path.read_text(encoding="utf-8") for path in (*sources, ROOT / "common/privacy/heads.py"))
    raised = set(re.findall(r'(?:code(?:: str)? ?= ?|return |^ +|", )"([a-z]+(?:-[a-z]+)+)"', code, re.MULTILINE))
    assert raised - NO_REFUSALS - set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", table)) == set()


def test_the_threat_model_is_linked_and_names_every_limit_of_a_policy() -> None:
    model = (ROOT / "docs/explanation/threat-model.md").read_text(encoding="utf-8")
    assert [field for field in Policy.model_fields if f"`{field}`" not in model] == []
    for page in ("README.md", "SECURITY.md"):
        assert "(docs/explanation/threat-model.md)" in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_of_the_spec_is_what_its_schema_says() -> None:
    done = subprocess.run([sys.executable, "docs/make_spec.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert (ROOT / "docs" / "reference" / "spec.md").read_text(encoding="utf-8") == done.stdout, (
        "python docs/make_spec.py > docs/reference/spec.md"
    )


def test_the_script_for_slurm_is_one_that_bash_reads() -> None:
    (script,) = re.findall(r"```bash\n(#!/bin/bash.*?)```", (DOCS / "how-to" / "clusters.md").read_text(), re.DOTALL)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_every_page_is_reached_from_the_index_and_the_front_door_is_short() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert [
        link
        for page in PAGES[1:]
        if f"({(link := str(page.relative_to(ROOT / 'docs')))})" not in index and link != "index.md"
    ] == []
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


@pytest.mark.slow
def test_words_that_make_a_page_hard_to_read_do_not_come_back() -> None:
    most = words.known()
    assert {phrase: count for phrase, count in words.counts().items() if count > most.get(phrase, 0)} == {}


def test_the_table_of_dependencies_has_all_of_them_in_the_versions_of_the_tests() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(one for name, extra in extras.items() if name != "dev" for one in extra)]
    names = [re.match(r"[\w.-]+", one)[0] for one in asked]  # type: ignore[index]
    page = (ROOT / "docs" / "reference" / "dependencies.md").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    known = {name.lower().replace("_", "-"): version for name, version in pinned.items()}
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", page)] == []
    assert [name for name in names if name in known and known[name] not in page] == []


def test_every_block_of_a_page_is_run_or_says_why_not() -> None:
    found = [block for page in pages.written() if page not in pages.BESIDE for block in pages.blocks(page)]
    assert {block.kind for block in found} <= {*pages.KINDS, "replace"}
    tests = {block.rest for block in found if block.kind == "test"} | {*pages.BESIDE.values()}
    assert [name for name in tests if not (ROOT / name).is_file()] == []
    assert sum(block.kind == "not run:" for block in found) <= NOT_RUN
    assert all(block.rest for block in found if block.kind == "not run:")


def test_fields_of_a_run_on_a_page_are_fields_of_a_run() -> None:
    shown = [block for page in pages.written() for block in pages.blocks(page) if block.kind == "json"]
    assert len(shown) >= 9
    for block in shown:
        for lines in block.text.splitlines() if block.rest else [block.text]:
            found = pages.fields(lines)
            for name, value in ({block.rest: CSV | found} if block.rest else found).items():
                kind: Any = RunSpec.model_fields[name].annotation
                TypeAdapter(kind).validate_json(json.dumps(value))


def test_pages_that_people_write_are_short() -> None:
    assert sum(words.by_page().values()) <= MOST_WORDS


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("step 1: AUC 0.93\ntook 5 s", []),
        ("step 9: AUC 0.5", []),
        ("written to …/model", []),
        ("step 1: AUC\n0.93", []),
        ("step 1: loss 0.93", ["step 1: loss 0.93"]),
    ],
)
def test_output_on_a_page_is_what_was_said_but_for_figures(shown: str, missing: list[str]) -> None:
    assert pages.unsaid(shown, ["step 1: AUC 0.93\n", "took 5 s\nwritten to /srv/kit/model\n"]) == missing


def test_marks_of_a_page_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    text = "<!-- replace a => b -->\n<!-- hidden go -->\n\n    one\n\n    two\n\n1. Text:\n\n"
    text += "   <!-- file x -->\n\n       {\n"
    (tmp_path / "page.md").write_text(text + "\n<!-- not run: no cluster -->\n\n```bash\nrun\n```\n\n    cat\n")
    assert [(block.kind, block.rest, block.text) for block in pages.blocks("page.md")] == [
        ("replace", "a => b", "a => b\n"),
        ("hidden", "go", "go\n"),
        ("", "", "one\n\ntwo\n"),
        ("file", "x", "{\n"),
        ("not run:", "no cluster", "run\n"),
        ("", "", "cat\n"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/reference/policy.md", "docs/tutorials/first-loop.md", "docs/how-to/tables.md"])
def test_commands_of_short_pages_do_what_the_page_says(tmp_path: Path, page: str) -> None:
    found = pages.followed(page, tmp_path)
    assert found
    assert [(block.line, result) for block, result in found if result.startswith("FAILED")] == []
