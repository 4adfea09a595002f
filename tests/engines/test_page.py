"""The commands of the pages of NVFlare and Flower, from an empty folder to a run: `make engines` runs them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.nvflare_poc import ROOT, Poc
from tests.engines import lacks

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]
MOST = 10  # commands from an engine's quick start to a run
# NVFlare waits for 30 s and Flower for 15 s, which is little where other work runs.
REPLACED = {
    "nvflare": {
        "poc start": "poc start --timeout 300",
        "poc stop": "poc stop || true",
        "submit -j job": "submit -j job | tee submitted",
        "JOB_ID": "$(sed -n 's/job_id: //p' submitted)",
    },
    "flower": {"flwr run": "flwr_run"},
}
PACKAGES = {"nvflare": "nvflare", "flower": "flwr"}


def commands(page: str, heading: str) -> list[str]:
    """Return the commands below a heading, up to the next one."""
    text = (ROOT / "docs" / "how-to" / f"{page}.md").read_text(encoding="utf-8")
    section = re.split(r"\n##+ ", text.split(f"# {heading}\n")[1])[0]
    blocks = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    return [line for block in blocks for line in textwrap.dedent(block).replace("\\\n", "").splitlines()]


@pytest.mark.parametrize(
    ("page", "headings"),
    [
        ("nvflare", ("Try it", "In a proof of concept")),
        ("nvflare", ("With your own data", "In a proof of concept")),
        ("nvflare", ("Try it", "In the simulator")),
        ("flower", ("The simulation engine",)),
    ],
)
def test_from_the_engine_s_quick_start_to_a_run(tmp_path: Path, page: str, headings: tuple[str, ...]) -> None:
    if lacks(PACKAGES[page]):
        pytest.skip(f"{PACKAGES[page]} is not installed: make engines")
    lines = [line for heading in headings for line in commands(page, heading)]
    assert len(lines) <= MOST
    shutil.copytree(ROOT / "simulations", tmp_path / "simulations")
    for index, place in enumerate("abcd"):
        (tmp_path / "hospitals" / f"hospital-{place}").mkdir(parents=True)
        rows = [f"{i % 17 + index},{i % 5},{'yes' if i * 7 % 17 > 8 else 'no'}" for i in range(150)]
        table = tmp_path / "hospitals" / f"hospital-{place}" / "patients.csv"
        table.write_text("\n".join(["age,visits,readmitted", *rows]) + "\n")
    script = "\n".join(line for line in lines if not line.startswith("pip install"))
    for shown, run in REPLACED[page].items():
        script = script.replace(shown, run)
    path = f"{Path(sys.executable).parent}:{Poc(tmp_path).environment['PATH']}"
    flwr = "import flwr.cli.local_superlink as local; local.LOCAL_SUPERLINK_STARTUP_TIMEOUT = 300.0; "
    flwr = f"{sys.executable} -c '{flwr}from flwr.cli.app import app; app()' run"
    script = f'flwr_run() {{ {flwr} "$@"; }}\n{script}'
    script = f'rankdad() {{ "{sys.executable}" -m rankdad "$@"; }}\nset -e\n{script}\n'
    environment = Poc(tmp_path).environment | {"PATH": path, "FLWR_HOME": str(tmp_path / "home")}
    said = tmp_path / "said.txt"  # not a pipe, which a SuperLink would keep open
    try:
        with said.open("w") as output:
            words = ["bash", "-c", script]
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, stdout=output, stderr=output, timeout=1500, check=False
            )
    finally:
        Poc(tmp_path).stop() if page == "nvflare" else _end(tmp_path)
    assert done.returncode == 0, said.read_text()[-5000:]
    (directory,) = (tmp_path / "settings" / "runs").iterdir()
    simulated = tmp_path / re.findall(r"simulate .*--output (\w+)", script)[0]
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (directory, simulated)]
    assert summaries[0]["weights_sha256"] == summaries[1]["weights_sha256"]
    assert (tmp_path / "settings" / "out" / "hospital-a" / "runs").is_dir()
    print(f"{page}, {headings[-1]}: {len(lines)} commands")


def _end(folder: Path) -> None:
    """End the SuperLink that `flwr run` has started, and all that it has."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"FLWR_HOME={folder}/home\0".encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                os.kill(int(path.parent.name), signal.SIGKILL)
