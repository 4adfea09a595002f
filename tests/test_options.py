"""Options of all commands: what one is given is followed or refused, never ignored."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rankdad.__main__ import app
from rankdad.common import __version__
from rankdad.common.errors import UserError
from tests.conftest import OPEN, run_document, write_site


@pytest.fixture
def files(tmp_path: Path) -> Path:
    pool = write_site(tmp_path / "pool", 150, 0)
    source = {"name": "npz", "path": str(pool / "data.npz")}
    site = {"name": "alpha", "aggregator": "http://127.0.0.1:1", "data": "pool", "output": "out"}
    documents = {
        "run": run_document(),
        "simulation": {"run": run_document(), "simulation": {"source": source, "policy": OPEN}},
        "site": site,
    }
    for name, document in documents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


@pytest.mark.parametrize(
    ("words", "field"),
    [
        ("check site.json --set policy=null", "--set"),
        ("check site.json --weights pool", "--weights"),
        ("check site.json --allow-factory mine:make", "--allow-factory"),
        ("check site.json --sites 2 --offline run.json", "--sites"),
        ("check run.json --sites 2", "--sites"),
        ("check run.json --regions 2", "--regions"),
        ("check run.json --data pool", "--data"),
        ("check run.json --offline run.json", "--offline"),
        ("simulate --resume out --weights pool", "--weights"),
        ("simulate --resume out --device auto", "--device"),
        ("simulate simulation.json --resume out", "FILE.json"),
        ("simulate simulation.json --lockstep --pooled --output out", "--lockstep"),
        ("simulate simulation.json --pooled --regions 2 --output out", "--regions"),
        ("simulate simulation.json --pooled --ledger --output out", "--ledger"),
        ("simulate simulation.json --verbose --quiet --output out", "--quiet"),
        ("export out --output model --final", "--final"),
        ("export out --output model --onnx --weights pool", "--weights"),
        ("schema --folder", "--folder"),
        ("schema --image mine", "--image"),
        ("schema --repository https://example.org", "--repository"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    files: Path, monkeypatch: pytest.MonkeyPatch, words: str, field: str
) -> None:
    monkeypatch.chdir(files)
    done = CliRunner().invoke(app, words.split())
    assert isinstance(done.exception, UserError), done.output
    assert (done.exception.code, done.exception.field) == ("option-unused", field)
    assert not (files / "out").exists(), "nothing has begun"


def test_a_site_of_several_processes_refuses_what_one_alone_has(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = CliRunner().invoke(app, ["site", str(files / "site.json"), "--stay"])
    assert isinstance(done.exception, UserError), done.output
    assert (done.exception.code, done.exception.field) == ("option-unused", "--stay")


@pytest.mark.slow
def test_every_command_takes_h_for_help() -> None:
    def commands(one: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        yield path
        for name, below in getattr(one, "commands", {}).items():
            yield from commands(below, (*path, name))

    found = list(commands(get_command(app)))
    assert ("privacy", "export") in found
    for path in found:
        done = CliRunner().invoke(app, [*path, "-h"])
        assert (done.exit_code, "--help" in done.output) == (0, True), path


@pytest.mark.slow
def test_version_and_help_are_said_without_anything_large() -> None:
    code = "import sys; from rankdad.__main__ import main; sys.argv = ['rankdad', sys.argv[1]]\n"
    heavy = {"torch", "numpy", "pandas", "pydantic", "httpx", "httpx2"}
    code += f"try: main()\nfinally: assert not {heavy} & sys.modules.keys()"
    for option, said in (("--version", f"rankdad {__version__}\n"), ("--help", "simulate")):
        done = subprocess.run([sys.executable, "-c", code, option], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert said in done.stdout
