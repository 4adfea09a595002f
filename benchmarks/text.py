"""`python -m benchmarks text`: the paper's question on texts, Debian's descriptions of packages at four sites."""

from __future__ import annotations

import csv
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from rich.console import Console

from benchmarks.methods import words
from rankdad.common.errors import UserError
from rankdad.common.files import write_whole
from rankdad.common.policy import EVERYTHING
from rankdad.simulate_command import command, summary_of

SECTIONS = ("games", "science", "net", "admin", "text", "java", "python", "sound")
SITES = ("a", "b", "c", "d")
OWN = 0.8  # part of an unlike site's rows that is of its own two sections
METHODS = (  # in the order in which they run
    '{"name": "dsgd"}',
    '{"name": "rank-dad", "rank": 4}',
    '{"name": "rank-dad", "rank": 8, "wire": "int8"}',
    '{"name": "powersgd", "rank": 4}',
    '{"name": "top-k", "density": 0.01}',
    '{"name": "dsgd", "local_steps": "epoch"}',
    '{"name": "dsgd", "local_steps": 4}',
)
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification", "classes": len(SECTIONS)},
    "language model": {"name": "language-model"},
}
COLUMNS = ("task", "sites", "method", "seeds", "test loss", "AUC or bits per byte", "KB a site and step", "times fewer")


def descriptions() -> Iterator[tuple[str, str]]:
    """Yield section and description of the packages that this machine knows; of equal descriptions the first.

    Raises:
        UserError: this is no Debian, or its lists of packages are empty.
    """
    if shutil.which("apt-cache") is None:
        raise UserError("text: reads Debian's descriptions of packages by apt-cache, which is not here", code="missing")
    known = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
    seen = set[str]()
    for package in known.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in package.splitlines() if ": " in line and line[0] != " ")
        section, text = fields.get("Section", "").rpartition("/")[2], fields.get("Description", "")
        if section in SECTIONS and text and text not in seen:
            seen.add(text)
            yield section, text
    if not seen:
        raise UserError("text: apt's lists of packages are empty: run apt-get update", code="missing")


def write_sites(folder: Path, rows: int, *, alike: bool) -> None:
    """Write a table for each site, of so many rows, drawn without repetition."""
    drawn, left = random.Random(0), dict[str, list[str]]()
    for section, text in descriptions():
        left.setdefault(section, []).append(text)
    for texts in left.values():
        drawn.shuffle(texts)
    for place, site in enumerate(SITES):
        (folder / site).mkdir(parents=True)
        own, chosen = SECTIONS[2 * place : 2 * place + 2], list[tuple[str, str]]()
        if sum(map(len, left.values())) < rows:
            raise UserError(
                f"--rows: got {rows}, more than there are descriptions", code="too-few-samples", field="--rows"
            )
        while len(chosen) < rows:
            section = drawn.choice(SECTIONS if alike or drawn.random() > OWN else own)
            if left[section]:
                chosen.append((left[section].pop(), section))
        with (folder / site / "packages.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "section"), *chosen])


def document(data: Path, task: str, epochs: int) -> dict[str, Any]:
    """Return a simulation of a task."""
    label = {} if task == "language model" else {"label": "section", "values": list(SECTIONS)}
    return {
        "run": {
            "name": "packages",
            "task": TASKS[task],
            "model": {"name": "transformer", "preset": "small"},
            "data": {"reader": "text", "file": "packages.csv", "column": "text", "length": 64, "longer": "first"}
            | label,
            "training": {
                "epochs": epochs,
                "batch_size": 32,
                "optimizer": {"name": "adam", "lr": 0.003},
                "schedule": {"name": "cosine"},
            },
            "federation": {"sites": list(SITES)},
        },
        "simulation": {
            "source": {"name": "folders", "path": str(data)},
            "partition": {"name": "folder"},
            "policy": EVERYTHING.model_dump(mode="json"),
        },
    }


def bench_text(output: Path, seeds: Sequence[int], rows: int, epochs: int, console: Console) -> None:
    """Train what has no result in a folder yet, and keep each result and the table at once.

    Args:
        output: the folder.
        seeds: of the runs.
        rows: at each site.
        epochs: of each training.
        console: where the table is printed.
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        cases = [(seed, task, kind) for seed in seeds for kind in ("alike", "unlike") for task in TASKS]
        for kind in ("alike", "unlike"):
            write_sites(Path(temporary) / kind, rows, alike=kind == "alike")
        for seed, task, kind in cases:
            file = Path(temporary) / f"{task}.json"
            for method in METHODS:
                settings = f"{rows} rows, {epochs} epochs"
                place = output / f"{task}, {kind}, {words(method)}, {settings}, seed {seed}.json".replace('"', "")
                if place.exists():
                    continue
                file.write_text(json.dumps(document(Path(temporary) / kind, task, epochs)), encoding="utf-8")
                own = [f"run.method={method}", f"run.seed={seed}"]
                summary = summary_of([*command(file, Path(temporary) / "run", own, None), "--lockstep"])
                shutil.rmtree(Path(temporary) / "run")
                case = {"task": task, "kind": kind, "method": method, "seed": seed, "summary": summary}
                write_whole(place, json.dumps(case))
                write_whole(output / "table.md", table(output))
                console.print(f"{place.stem}: {summary['seconds']:.0f} s", highlight=False, soft_wrap=True)
    console.print(table(output), highlight=False, soft_wrap=True)


def table(output: Path) -> str:
    """Return the means over seeds of all results in a folder, as Markdown; bytes compare with full gradients."""
    found = dict[tuple[str, str, str], list[dict[str, Any]]]()
    for place in sorted(output.glob("*.json")):
        case = json.loads(place.read_text(encoding="utf-8"))
        found.setdefault((case["task"], case["kind"], case["method"]), []).append(case["summary"])
    lines = ["| " + " | ".join(COLUMNS) + " |", "|---|---|---|--:|--:|--:|--:|--:|"]
    for (task, kind, method), own in sorted(found.items(), key=lambda one: (*one[0][:2], METHODS.index(one[0][2]))):
        full = found.get((task, kind, METHODS[0]), own)
        tests = [one["metrics"]["test"] for one in own]
        name = "bits_per_byte" if task == "language model" else "auc"
        cells = (
            *(task, kind, words(method), len(own)),
            f"{mean(one['loss'] for one in tests):.4f}",
            f"{mean(one[name] for one in tests):.4f}",
            f"{mean(one['bytes_up_per_site_step'] + one['bytes_down_per_site_step'] for one in own) / 2e3:,.1f}",
            f"{mean(map(_bytes, full)) / mean(map(_bytes, own)):.1f}",
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def _bytes(summary: dict[str, Any]) -> float:
    """Return a site's bytes of a whole training, up and down."""
    return float(summary["bytes_up_per_site_step"] + summary["bytes_down_per_site_step"]) * float(summary["steps"])
