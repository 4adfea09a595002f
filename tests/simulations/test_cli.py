"""What the commands say and how they exit; the work behind them has tests of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from rankdad.common.errors import FewSamplesError, UserError
from rankdad.common.methods.base import pooled
from rankdad.common.policy import Policy
from rankdad.local.config import SiteConfig
from rankdad.simulations.cli import _warned, mount
from rankdad.simulations.cli_checks import check
from tests.conftest import OPEN, SHARED, run_document, write_site


def rankdad(*words: object) -> Result:
    app = typer.Typer()
    mount(app)
    return CliRunner().invoke(app, [str(word) for word in words])


def test_the_log_of_each_site_has_its_first_warning_printed(tmp_path: Path) -> None:
    for site, lines in {
        "a": ["INFO r/a: ok", *["WARNING r/a: t.csv: row 3: empty", "WARNING r/a: x"] * 2],
        "b": ["WARNING r/b: 6 rows: values that fewer than 3 samples have are replaced by usual ones (min_level): x"],
    }.items():
        (tmp_path / "sites" / site).mkdir(parents=True)
        text = "".join(f"2026-11-30 05:02:47 {line}\n" for line in lines)
        (tmp_path / "sites" / site / "log.txt").write_text(text)
    (said,) = _warned(tmp_path, ["a", "b", "c"])
    assert said == f"note:    a: t.csv: row 3: empty (1 more in {tmp_path / 'sites' / 'a' / 'log.txt'})"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pool = write_site(tmp_path / "pool", 150, 0)
    run = run_document(model={"name": "mlp", "hidden": [64, 64]}, method={"name": "rank-dad", "rank": 2})
    simulation = {"source": {"name": "npz", "path": str(pool / "data.npz")}, "policy": OPEN}
    path = tmp_path / "file.json"
    path.write_text(json.dumps({"run": run, "simulation": simulation}))
    return path


@pytest.mark.slow
def test_verify_exits_with_1_if_an_exact_method_is_not(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rankdad("verify", file).exit_code == 0
    monkeypatch.setattr(
        "rankdad.common.methods.dad.pooled", lambda contributions: pooled(contributions[:2])
    )  # one forgotten
    done = rankdad("verify", file)
    assert done.exit_code == 1
    assert "NOT EXACT" in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scaling", "said"),
    [("none", "learning rate still 0.01"), ("linear", "learning rate 0.06 instead of 0.03")],
)
def test_another_number_of_sites_says_what_it_does(file: Path, tmp_path: Path, scaling: str, said: str) -> None:
    sets = ["--set", f'run.training.lr_scaling="{scaling}"', "--set", "run.training.epochs=1"]
    done = rankdad("simulate", file, "--sites", 6, "--lockstep", "--output", tmp_path / "run", *sets)
    assert done.exit_code == 0, done.output
    assert "6 sites instead of 3: a global batch of 48 samples instead of 24" in done.output
    assert said in done.output


@pytest.mark.slow
def test_quiet_says_no_epoch(file: Path, tmp_path: Path) -> None:
    words = ["simulate", file, "--lockstep", "--set", "run.training.epochs=1", "--output"]
    assert "epoch 1 of 1 · " in rankdad(*words, tmp_path / "loud").output
    quiet = rankdad(*words, tmp_path / "quiet", "-q").output
    assert "epoch 1 of 1" not in quiet
    assert "weights: equal at all sites" in quiet
    assert (tmp_path / "quiet" / "sites" / "alpha" / "model" / "final.safetensors").exists()


SPECS = Path(__file__).parents[2] / "simulations" / "specs"
DSGD = 'run.method={"name": "dsgd"}'
LOSES = (
    "lets out the whole gradient of a layer, with a rank up to the number of samples: a batch can be rebuilt from it"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "sets", "said"),
    [
        ("diabetes", [], ""),
        (
            "digits",
            [DSGD],
            f'method.name: .* whole, of .* units.*rows_per_rank 4.*; "rows_per_rank": .* in its policy {LOSES}',
        ),
        ("digits-256", [], 'model: .* numbers of 32 samples.*rows_per_rank 4.*; "rows_per_rank": 3 in its policy'),
    ],
)
def test_specs_say_what_they_need_beyond_the_default_policy(name: str, sets: list[str], said: str) -> None:
    words = [word for one in sets for word in ("--set", one)]
    assert rankdad("check", SPECS / f"{name}.json", *words).exit_code == 0
    error = rankdad("check", SPECS / f"{name}.json", *words, "--set", "simulation.policy={}").exception
    assert re.search(said, str(error)) if said else error is None


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    ["autism", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("brain_age", "sex"))],
)
def test_so_do_those_of_twenty_hospitals_which_refuse_so_many_columns_by_default(name: str) -> None:
    if not (SHARED / "abide_freesurfer").exists():
        pytest.skip("no data of ABIDE")
    words = (SPECS / f"{name}.json", "--data", SHARED / "abide_freesurfer")
    assert rankdad("check", *words).exit_code == 0
    error = rankdad("check", *words, "--set", "simulation.policy={}").exception
    assert isinstance(error, FewSamplesError)


@pytest.mark.parametrize("relative", [False, True])
def test_what_is_split_has_the_whole_policy_to_be_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relative: bool
) -> None:
    """By a relative folder the site had another secret than the one that was made for it."""
    monkeypatch.chdir(tmp_path)
    done = rankdad("split", SPECS / "diabetes.json", "--output", "demo" if relative else tmp_path / "demo")
    assert done.exit_code == 0, done.output
    own = tmp_path / "demo" / "hospital-b"
    assert (own / "policy.json").read_text() == Policy(min_rows=4, rows_per_rank=2).text()
    config = SiteConfig.read(tmp_path / "demo" / "hospital-b.json")
    assert (config.policy, config.privacy) == (str(own / "policy.json"), str(own / "privacy"))
    for told in (done.output, (own / "README.txt").read_text()):
        assert "min_rows 4 (8), rows_per_rank 2 (4)" in told, (
            "a policy that is weaker than the default was copied unsaid"
        )


def test_check_takes_a_run_that_stands_under_its_name_alone(tmp_path: Path) -> None:
    """It was told that run is not known."""
    (tmp_path / "run.json").write_text(json.dumps({"run": run_document()}))
    assert rankdad("check", tmp_path / "run.json").exit_code == 0
    (tmp_path / "run.json").write_text(json.dumps({"run": run_document(), "name": "small"}))
    error = rankdad("check", tmp_path / "run.json").exception
    assert isinstance(error, UserError)
    assert (error.code, error.field) == ("unknown-field", "name")


@pytest.mark.slow
@pytest.mark.parametrize(("command", "said"), [("check", "32 × 11"), ("verify", "exact: equal to the pooled gradient")])
def test_columns_that_patterns_stand_for_are_those_of_the_table(command: str, said: str) -> None:
    """A regression from a table that comes with scikit-learn."""
    result = rankdad(command, SPECS / "diabetes.json")
    assert result.exit_code == 0, result.exception
    assert said in result.stdout


def test_check_says_at_once_that_it_has_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()

    def looking(config: SiteConfig, *_: object, **__: object) -> None:
        said.append(capsys.readouterr().err)
        raise FewSamplesError("evaluation", "as expected", code="x")

    monkeypatch.setattr("rankdad.local.taking_part.check_site", looking)
    path = tmp_path / "site.json"
    path.write_text(json.dumps({"name": "alpha", "aggregator": "http://127.0.0.1:1", "data": "d", "output": "o"}))
    with pytest.raises(FewSamplesError):
        check(path)
    assert str(path) in said[0]


@pytest.mark.parametrize(
    ("words", "code", "field"),
    [
        (("--label", "y", "--label", "x"), "option-repeated", "--label"),
        (("--label", "z"), "column-missing", "--label"),
        (("--label", "y", "--categorical", "z"), "column-missing", "--categorical"),
        (("--label", "y", "--exclude", "z"), "column-missing", "--exclude"),
        (("--label", "y", "--columns", "a,b,c"), "columns-mismatch", "data.columns"),
        (("--label", "y", "--decimal", ";"), "field-invalid", "decimal"),
    ],
)
def test_options_of_init_that_cannot_be_are_refused_by_name(
    words: tuple[str, ...], code: str, field: str, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{row}.5,{row % 2}\n" for row in range(40)))
    error = rankdad("init", tmp_path / "t.csv", *words, "--output", tmp_path / "run.json").exception
    assert isinstance(error, UserError)
    assert (error.code, error.field) == (code, field)
    assert not (tmp_path / "run.json").exists()
