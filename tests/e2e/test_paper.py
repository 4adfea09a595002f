"""`python -m benchmarks paper`, as a person starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_processes import benchmark

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
def test_a_figure_is_made_and_goes_on_where_it_was(tmp_path: Path) -> None:
    output = tmp_path / "paper"
    command = ("paper", "figure-6", "--quick", "--output", str(output))
    done = benchmark(*command, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "21/21" in done.stdout
    assert (output / "figure-6.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "figure-6.csv").read_text().startswith("method,size,direction,formula,sent,header")
    page = (output / "README.md").read_text()
    assert "what is sent matches the formula within the header" in page
    assert "![" in page
    assert "Not measured yet: `python -m benchmarks paper figure-2 --setting quick`" in page

    first = next((output / "results").rglob("*.json"))
    first.unlink()
    again = benchmark(*command, timeout=300)
    assert "20 of 21 results are there from before" in again.stdout
    assert "1/1" in again.stdout
    assert (output / "README.md").read_text() == page


@pytest.mark.exhaustive
def test_what_cannot_be_made_is_said_at_once(tmp_path: Path) -> None:
    missing = benchmark("paper", "all", "--quick", "--data", str(tmp_path), "--output", str(tmp_path / "out"))
    assert missing.returncode == 2
    assert f"{tmp_path}/mnist.npz: does not exist; figure-2, figure-3, table-3 needs it" in missing.stderr
    assert "what can be made without: figure-6" in missing.stderr
    assert not (tmp_path / "out").exists()
    wrong = benchmark("paper", "figure-7")
    assert wrong.returncode == 2
    assert "figure-7" in wrong.stderr
    assert "table-3" in wrong.stderr
