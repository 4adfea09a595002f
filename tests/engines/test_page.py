"""The commands of docs/how-to/nvflare.md, as they stand there: `make engines` runs them."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.nvflare_poc import ROOT, Poc

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("nvflare") is None, reason="NVFlare is not installed: make engines"),
]
PAGE = (ROOT / "docs" / "how-to" / "nvflare.md").read_text(encoding="utf-8")


def commands(heading: str) -> str:
    """Return the commands below a heading, but those that install."""
    section = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    lines = [line[4:] for block in blocks for line in block.splitlines()]
    return "\n".join(line for line in lines if not line.startswith("pip install"))


def test_from_the_simulator_to_processes(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "simulations", tmp_path / "simulations")
    poc = commands("A proof of concept").replace("job submit -j job", "job submit -j job | tee submitted")
    poc = poc.replace("JOB_ID", "$(sed -n 's/job_id: //p' submitted)")
    # NVFlare waits for 30 s, which is little where other work runs.
    poc = poc.replace("poc start", "poc start --timeout 300").replace("poc stop", "poc stop || true")
    path = f"{Path(sys.executable).parent}:{Poc(tmp_path).environment['PATH']}"
    script = f'rankdad() {{ "{sys.executable}" -m rankdad "$@"; }}\nset -e\n{commands("The simulator")}\n{poc}\n'
    environment = Poc(tmp_path).environment | {"PATH": path}
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
    finally:
        Poc(tmp_path).stop()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "COMPLETED" in done.stdout + done.stderr
    (directory,) = (tmp_path / "runs").iterdir()
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (directory, tmp_path / "digits")]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]
    assert (tmp_path / "out" / "hospital-a" / "runs").is_dir()
