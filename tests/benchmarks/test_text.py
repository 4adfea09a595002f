"""The table of the benchmark on texts: what is compared with what, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.text_tables import results, table

FULL, OTHER = '{"name": "dsgd"}', '{"name": "rank-dad", "rank": 8}'


def write(folder: Path, method: str, seed: int, loss: float, curve: list[tuple[float, float]]) -> None:
    kilobytes = 2000 if method == FULL else 50
    summary = {"metrics": {"test": {"loss": loss, "auc": 0.9 - seed / 100}}, "steps": 100}
    summary |= {"bytes_up_per_site_step": kilobytes * 1000, "bytes_down_per_site_step": kilobytes * 1000}
    case = {"task": "classification", "kind": "alike", "method": method, "seed": seed}
    (folder / f"{method[10]}{seed}.json").write_text(json.dumps(case | {"summary": summary, "curve": curve}))


def test_methods_are_compared_on_the_seeds_that_both_have(tmp_path: Path) -> None:
    write(tmp_path, FULL, 0, 1.0, [(100, 2.0), (200, 1.0)])
    write(tmp_path, OTHER, 0, 1.01, [(3, 2.0), (5, 1.04)])
    write(tmp_path, OTHER, 1, 9.0, [(3, 9.0)])  # without full gradients of this seed
    first, second = [line.split(" | ") for line in table(results(tmp_path, (FULL, OTHER)), FULL).splitlines()[2:]]
    assert first[3:] == ["0", "100", "1.0000", "1.0000", "0.9000", "+0.0000", "2,000.0", "1.0", "200.00", "1.0 |"]
    assert second[3:7] == ["0, 1", "100", "5.0050", "1.0100"]
    assert second[7:] == ["0.8950", "+0.0000", "50.0", "40.0", "5.00", "40.0 |"]


def test_a_target_that_is_never_reached_is_a_dash(tmp_path: Path) -> None:
    write(tmp_path, FULL, 0, 1.0, [(200, 1.0)])
    write(tmp_path, OTHER, 0, 1.2, [(5, 1.2)])
    second = table(results(tmp_path, (FULL, OTHER)), FULL).splitlines()[3].split(" | ")
    assert second[-2:] == ["–", "– |"]
