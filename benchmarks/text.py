"""`python -m benchmarks text`: the paper's question on texts, Debian's descriptions of packages at four sites."""

from __future__ import annotations

import csv
import json
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd
from rich.console import Console

from benchmarks.methods import words
from benchmarks.text_tables import picture, results, table
from rankdad.common.errors import UserError
from rankdad.common.files import write_whole
from rankdad.common.policy import EVERYTHING
from rankdad.simulate_command import command, summary_of

SECTIONS = ("games", "science", "net", "admin", "text", "java", "python", "sound")
SITES = ("a", "b", "c", "d")
KINDS = ("alike", "unlike")
AT_ONCE = 2  # runs, each of one thread
OWN = 0.8  # part of an unlike site's rows that is of its own two sections
PROMISED = 3  # methods that run first
LONGER = '{"name": "rank-dad", "rank": 4, "wire": "int4"}'  # by 3 / 4 more epochs than the others
METHODS = (  # in the order in which they run
    '{"name": "dsgd"}',
    LONGER,
    '{"name": "rank-dad", "rank": 8, "wire": "int4"}',
    '{"name": "powersgd", "rank": 4, "wire": "int8"}',
    '{"name": "top-k", "density": 0.06, "wire": "int4"}',
    '{"name": "dsgd", "local_steps": 4}',
    '{"name": "dsgd", "local_steps": "epoch"}',
)
TASKS: dict[str, dict[str, Any]] = {
    "classification": {"name": "classification", "classes": len(SECTIONS)},
    "language model": {"name": "language-model"},
}


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


def document(data: Path, task: str, epochs: int, method: dict[str, Any]) -> dict[str, Any]:
    """Return a simulation of a task by a method."""
    label = {} if task == "language model" else {"label": "section", "values": list(SECTIONS)}
    return {
        "run": {
            "name": "packages",
            "task": TASKS[task],
            "model": {"name": "transformer", "preset": "small"},
            "method": method,
            "data": {"reader": "text", "file": "packages.csv", "column": "text", "length": 64, "longer": "first"}
            | label,
            "training": {
                "epochs": epochs,
                "batch_size": 16,
                "optimizer": {"name": "adam", "lr": 0.003, "second_moment": _second_moment(method)},
                "schedule": {"name": "cosine", "warmup": 40},
            },
            "federation": {"sites": list(SITES)},
        },
        "simulation": {
            "source": {"name": "folders", "path": str(data)},
            "partition": {"name": "folder"},
            "policy": EVERYTHING.model_dump(mode="json"),
        },
    }


def bench_text(
    output: Path, seeds: Sequence[int], kinds: Sequence[str], rows: int, epochs: int, console: Console
) -> None:
    """Train what has no result in a folder yet, two at a time, and write each result, the table and a picture at once.

    Full gradients and rank-dAD come first, with all seeds.

    Args:
        output: the folder.
        seeds: of the runs.
        kinds: of sites, of `KINDS`.
        rows: at each site.
        epochs: of each training but that of the method that trains longer.
        console: where the table is printed.
    """
    output.mkdir(parents=True, exist_ok=True)
    lock = Lock()
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(AT_ONCE) as pool:
        for kind in kinds:
            write_sites(Path(temporary) / kind, rows, alike=kind == "alike")

        def run(kind: str, seed: int, method: str, task: str) -> None:
            passes = epochs * 7 // 4 if method == LONGER else epochs
            name = f"{task}, {kind}, {words(method)}, {rows} rows, {passes} epochs, seed {seed}".replace('"', "")
            place, file = output / f"{name}.json", Path(temporary) / f"{name} spec.json"
            if place.exists():
                return
            file.write_text(
                json.dumps(document(Path(temporary) / kind, task, passes, json.loads(method))), encoding="utf-8"
            )
            directory = Path(temporary) / name
            summary = summary_of([*command(file, directory, [f"run.seed={seed}"], None), "--lockstep"])
            case = {"task": task, "kind": kind, "method": method, "seed": seed, "summary": summary}
            case["curve"] = _curve(directory)
            shutil.rmtree(directory)
            with lock:
                write_whole(place, json.dumps(case))
                write_whole(output / "table.md", table(results(output, METHODS), METHODS[0]))
            console.print(f"{name}: {summary['seconds']:.0f} s", highlight=False, soft_wrap=True)

        console.print(f"results come to {output}; those that are there already stay", highlight=False, soft_wrap=True)
        for part in (METHODS[:PROMISED], METHODS[PROMISED:]):
            for done in [pool.submit(run, *case) for case in product(kinds, seeds, part, TASKS)]:
                done.result()
    found = results(output, METHODS)
    console.print(table(found, METHODS[0]), highlight=False, soft_wrap=True)
    (output / "text.png").write_bytes(picture(found))


def _second_moment(method: dict[str, Any]) -> str:
    """Return the better second moment of those that a method can have: local steps have none from projections."""
    return "elementwise" if "local_steps" in method else "factored"


def _curve(directory: Path) -> list[tuple[float, float]]:
    """Return the megabytes of a site so far, both ways, and the validation loss of all sites, after each epoch."""
    steps, metrics = (pd.read_csv(directory / name) for name in ("steps.csv", "metrics.csv"))
    sent = (steps.groupby("epoch").sum()[["bytes_up", "bytes_down"]].sum(axis=1).cumsum() / len(SITES) / 1e6).to_dict()
    rows = metrics[(metrics["split"] == "validation") & (metrics["site"] == "pooled")]
    return [(sent[epoch], loss) for epoch, loss in zip(rows["epoch"], rows["loss"], strict=True)]
