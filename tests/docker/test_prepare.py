"""What `prepare.sh` hands to `rankdad split`, with the container's paths and programs put in their place."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.docker.images import ROOT

PATHS = ("/kits", "/consortia", "/run.json", "/tmp/split", "/results")
PROGRAMS = {
    "setpriv": 'while [ "$1" != rankdad ]; do shift; done; exec "$@"',
    "rankdad": 'echo "$@" >>"$SAID"; mkdir -p "$4/alpha/data"; touch "$4/alpha/data/x" "$4/alpha/policy.json"',
    "chown": "",
}


def prepared(folder: Path, run: str, status: str = "running") -> str:
    """Run the script with a spec's text, and return what `rankdad` is called with."""
    for name in ("kits/aggregator", "kits/alpha/data", "consortia", "results/aggregator", "results/alpha", "programs"):
        (folder / name).mkdir(parents=True)
    (folder / "kits/aggregator/complete").touch()
    (folder / "consortia/aggregator.json").touch()
    (folder / "results/aggregator/summary.json").write_text(json.dumps({"status": status}))
    (folder / "run.json").write_text(run)
    for name, text in PROGRAMS.items():
        (folder / "programs" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "programs" / name).chmod(0o755)
    script = (ROOT / "docker" / "prepare.sh").read_text()
    for path in PATHS:
        script = script.replace(path, f"{folder}/{path.rpartition('/')[2]}")
    path = f"{folder / 'programs'}:{os.environ['PATH']}"
    environment = os.environ | {"OWNER": "1:1", "SAID": str(folder / "said"), "PATH": path}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return (folder / "said").read_text()


@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}])
def test_digits_come_from_the_image_however_the_spec_is_laid_out(tmp_path: Path, layout: dict[str, Any]) -> None:
    document: dict[str, Any] = {"run": {"name": "x"}, "simulation": {"source": {"name": "digits"}}}
    assert "/opt/rankdad/digits.npz" in prepared(tmp_path / "digits", json.dumps(document, **layout))
    document["simulation"]["source"] = {"name": "diabetes"}
    assert "digits.npz" not in prepared(tmp_path / "other", json.dumps(document, **layout))


@pytest.mark.parametrize(("status", "over"), [("refused", True), ("failed", True), ("interrupted", False)])
def test_the_results_of_a_run_that_is_over_are_put_aside(tmp_path: Path, status: str, over: bool) -> None:
    prepared(tmp_path / "here", "{}", status)
    assert (tmp_path / "here/results/aggregator/summary.json").exists() is not over
