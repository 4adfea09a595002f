"""What a site's terminal says while it trains, and what `check --offline` says of its data before."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner, Result

from rankdad.common.errors import UserError
from rankdad.common.logs import MAX_PROGRESS, LogOptions, set_up
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.local.agent.words import what_leaves, what_small_steps_send, what_tests_send
from rankdad.local.config import SiteConfig
from rankdad.local.drivers.running import run_site
from rankdad.local.sent import sent
from rankdad.simulations.cli import mount
from tests.conftest import run_document, site_config, write_policy, write_site
from tests.remote.serving import serving

SAID = [f"{fold}{line}" for fold in ("fold 1 of 2", "fold 2 of 2") for line in (": trains", "/epoch 1 of 1", "")]
SAID += ["final model: trains with all samples", "final model/epoch 1 of 1", "final model"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lines", "quiet", "json"])
def test_a_site_says_a_line_for_every_fold_and_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    set_up(LogOptions.of(verbose=False, quiet=kind == "quiet", as_json=kind == "json"))
    places = {"data": str(write_site(tmp_path / "data", 60, 0)), "output": str(tmp_path / "out")}
    alone: dict[str, Any] = {"federation": {"sites": ["alpha"]}, "training": {"epochs": 1}}
    with serving(tmp_path / "run", **alone, evaluation={"name": "k-fold", "folds": 2}) as served:
        run_site(site_config(served.port, **places, policy=write_policy(tmp_path)))
    found = sent(tmp_path / "out", served.aggregator.run_id)
    assert found.keys() >= {"hello", "step", "evaluation"}
    assert all(one.bytes > one.messages > 0 for one in found.values())
    out, err = capsys.readouterr()
    lines = [line.removeprefix("alpha: ") for line in out.splitlines()[:-1]]
    if kind == "json":
        lines = [json.loads(line)["message"] for line in err.splitlines()]
        lines = [line for line in lines if line.startswith(("epoch", "fold", "final"))]
    expected = [line.partition("/")[2] or line for line in SAID]
    assert [line.split(" · ")[0] for line in lines] == expected * (kind != "quiet")
    assert all(len(line) <= MAX_PROGRESS for line in lines)
    assert all(" s · step " in line and " · loss " in line for line in lines if line.startswith("epoch"))


def check(folder: Path, table: pd.DataFrame, changes: Any = None, **policy: Any) -> Result:
    """`check SITE.json --offline RUN.json`."""
    (folder / "data").mkdir(exist_ok=True)
    table.to_csv(folder / "data" / "heart.csv", index=False)
    write_policy(folder, **policy)
    site = {"name": "alpha", "aggregator": "http://127.0.0.1:1", "data": "data", "output": "out"}
    (folder / "site.json").write_text(json.dumps(site | {"policy": "policy.json"}))
    schema = {
        "reader": "csv",
        "file": "heart.csv",
        "features": ["age", "sex", "crp"],
        "categorical": {"sex": ["m", "w"]},
        "label": "ill",
        "values": ["no", "yes"],
        "missing": "impute",
    }
    task, model = {"name": "classification", "classes": 2}, {"name": "linear"}
    run = run_document(task=task, data=schema, model=model, **(changes or {}))
    (folder / "run.json").write_text(json.dumps({"run": run}))
    app = typer.Typer()
    mount(app)
    return CliRunner().invoke(app, ["check", str(folder / "site.json"), "--offline", str(folder / "run.json")])


def table(count: int = 60) -> pd.DataFrame:
    generator = np.random.default_rng(0)
    crp = np.where(np.arange(count) < 3, 2.5, np.nan)
    sex = generator.choice(["m", "w"], count)
    return pd.DataFrame(
        {"age": generator.integers(30, 80, count), "sex": sex, "crp": crp, "ill": np.where(sex == "m", "yes", "no")}
    )


def test_data_are_read_before_any_aggregator_is_there(tmp_path: Path) -> None:
    done = check(tmp_path, table(), min_rows=4)
    assert done.exit_code == 0, done.output
    assert "alpha can take part in small (dsgd), and its policy allows the run: " in done.output
    assert "60 read, 0 left out, 60 in Table 1" in done.output
    lines = {line.split("│")[1].strip(): line for line in done.output.splitlines() if line.count("│") > 3}
    assert lines["min_rows"].split("│")[2].strip().endswith(" or less")
    assert "count, mean and deviation" in lines["age"]
    assert f"m: {(table()['sex'] == 'm').sum()}, w: " in lines["sex"]
    assert "57 (95%)" in lines["crp"]
    assert "nothing" in lines["crp"], "3 values are fewer than the policy lets out"
    assert f"ill = yes: {(table()['ill'] == 'yes').sum()}" in done.output
    assert not (tmp_path / "out").exists()


FACTORED = {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}}
LEAVES: dict[str, tuple[dict[str, Any], dict[str, bool]]] = {  # what a run asks for, and which words stand there
    "plain": (
        {"training": {"batches": "full"}},
        {"every epoch:": True, "reference": False, "projection": False, "batches are even": False},
    ),
    "references": (
        {
            "evaluation": {"name": "holdout", "references": ["local", "linear"]},
            "training": {"validation": 0, "batches": "full"},
        },
        {"every epoch:": False, "each reference model: local, linear": True, "the reference linear and": True},
    ),
    "factored": ({"training": FACTORED}, {"batches are even": True, "random projections of every matrix": True}),
}


@pytest.mark.parametrize("asked", LEAVES)
def test_what_leaves_a_site_is_what_the_run_asks_for(tmp_path: Path, asked: str) -> None:
    changes, words = LEAVES[asked]
    told = check(tmp_path, table(), changes, min_rows=4).output
    assert {word: word in told for word in words} == words


@pytest.mark.parametrize("smooth", [True, False])
def test_check_approval_and_log_agree_about_tests_and_small_steps(tmp_path: Path, smooth: bool) -> None:
    """Predictions stayed here, left approximately, and left by columns, in three sentences about one run."""
    done = check(tmp_path, table(), {"training": {"solver": "steps"}}, min_rows=4, keyed_folds=not smooth)
    told = " ".join(done.output.split())
    spec = RunSpec.read(tmp_path / "run.json")
    policy = Policy.read(str(tmp_path / "policy.json"))
    asked = "\n".join(what_leaves(spec, make_plan(spec, build_model(spec)), policy, "anna"))
    assert what_tests_send(spec, smooth=smooth) in asked
    assert what_tests_send(spec, smooth=smooth) in told
    assert "others could compute: training.batch_size: " in told
    assert what_small_steps_send(spec, 4) in asked
    assert not what_small_steps_send(spec, 32)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["cell", "policy"])
def test_what_a_run_would_refuse_is_said_in_the_same_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    found = table().astype(object)
    if what == "cell":
        found.loc[4, "age"] = "<30"
    done = check(tmp_path, found, **({"min_rows": 50} if what == "policy" else {}))
    assert isinstance(done.exception, UserError), "with status 2, as online"
    document = json.loads((tmp_path / "run.json").read_text())["run"]
    with serving(tmp_path / "run", **document) as served:
        config = SiteConfig.read(tmp_path / "site.json")
        with pytest.raises(Exception, match=r"row 6, column age" if what == "cell" else r"policy allows") as error:
            run_site(config.model_copy(update={"aggregator": f"http://127.0.0.1:{served.port}"}))
    assert str(error.value) == str(done.exception)
    assert threading.active_count() < 20


@pytest.mark.slow
def test_offline_goes_with_a_sites_file(tmp_path: Path) -> None:
    check(tmp_path, table())
    app = typer.Typer()
    mount(app)
    done = CliRunner().invoke(app, ["check", str(tmp_path / "run.json"), "--offline", str(tmp_path / "run.json")])
    assert "is no site's file" in str(done.exception)
