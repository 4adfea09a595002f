"""A wrong field is named, with its value and what was expected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rankdad.common.documents import load_json, problems, replace, validate
from rankdad.common.errors import SpecError, UserError
from rankdad.common.spec import RunSpec
from rankdad.simulations.spec import SimulationFile
from tests.conftest import run_document, run_spec

SPECS = Path(__file__).parent.parent.parent / "simulations" / "specs"


@pytest.mark.parametrize("name", ["digits.json", "mnist.json"])
def test_the_files_that_come_with_it_are_valid(name: str) -> None:
    file = validate(SimulationFile, load_json(SPECS / name))
    assert file.run.method.name == "rank-dad"


@pytest.mark.parametrize(
    ("assignment", "field", "said"),
    [
        (
            'method={"name":"rank-dad","rank":0}',
            "method.rank",
            "got 0, expected greater than or equal to 1",
        ),
        ('method={"name":"rank-dad","rank":"4"}', "method.rank", 'got "4"'),
        ('method={"name":"rank-dad","rank":4,"feeedback":"both"}', "method.feeedback", "not known here"),
        (
            'method={"name":"powersdg"}',
            "method",
            "'powersdg', expected one of 'dsgd', 'dad', 'edad', 'rank-dad', 'powersgd'",
        ),
        ('method={"rank":4}', "method", "no name"),
        ('method={"name":"dsgd","rank":4}', "method.rank", 'not known here: "dsgd" has none, but others have'),
        ('method={"name":"rank-dad","rank":4,"budget":9000}', "method.budget", "is not known here: remove it or"),
        ('method={"name":"rank-dad","rank":4,"oversampling":4}', "method.oversampling", "is not known here: remove it"),
        ("training.optimizer.lr=-1", "training.optimizer.lr", "got -1"),
        ("training.epochs=1.5", "training.epochs", "got 1.5"),
        ("training.validation=0.9", "training", "leave nothing to train on"),
        ('federation.sites=["a","a"]', "federation", "a stands there more than once"),
        ('federation.sites=["a","../x"]', "federation.sites[1]", 'got "../x"'),
        ('federation.sites=["aggregator"]', "federation", "no site or region can be called aggregator"),
        ('federation.regions={"r":["alpha"],"alpha":["beta"]}', "federation", "regions: alpha: is a site's name too"),
        ('federation.regions={"r":["alpha","elsewhere"]}', "federation", "r: elsewhere is neither a site nor a region"),
        (
            'federation.regions={"r":["alpha"],"s":["alpha"]}',
            "federation",
            "regions: s: alpha is already a member of r",
        ),
        ('federation.regions={"r":[]}', "federation", "regions: r: has no members, expected sites or other regions"),
        ('federation.regions={"r":["s"],"s":["r"]}', "federation", "r: is a member of itself, by way of r and s"),
        ('federation.regions={"aggregator":["alpha"]}', "federation", "no site or region can be called aggregator"),
        ('federation={"sites":["a","b"],"regions":{"r":["a"]},"quorum":1}', "federation", "quorum: got 1, but with"),
        (
            'training={"epochs":1,"batch_size":1,"optimizer":{"name":"adam","lr":1},"validation":0,"early_stopping":{"patience":1}}',
            "training",
            "early_stopping needs samples",
        ),
        ("training.optimizer.weight_decay=Infinity", "training.optimizer.weight_decay", "got Infinity"),
        ("federation.sites=[]", "federation.sites", "got []"),
        ('data.file="../../etc/passwd"', "data.file", "got"),
        ('method={"name":"dsgd","wire":"int4"}', "method.wire", 'got "int4"'),
        ('method={"name":"top-k","wire":"int2","feedback":"none"}', "method", "wire: got int2"),
        ('method={"name":"rank-dad","rank":2,"wire":"int4","preset":"converged"}', "method", "wire: got int4"),
        ('method={"name":"rank-dad","rank":2,"lazy":2,"feedback":"none"}', "method", "lazy: got 2, but"),
        ('method={"name":"rank-dad","rank":2,"preset":"fast"}', "method.preset", "'converged', 'fedavg'"),
        ('method={"name":"rank-dad","rank":2,"lazy":-1}', "method.lazy", "greater than or equal to 0"),
        ('method={"name":"edad","wire":"int8"}', "method.wire", 'got "int8"'),
        ('tuning={"weight_decay":[0.1]}', "tuning", "got 1 combinations, expected 2 to 16 to choose from"),
        ('tuning={"weight_decay":[0.1,0.1]}', "tuning", "weight_decay: one of the values stands there more than once"),
        ('tuning={"rank":[1,2]}', "tuning", "rank: the method dsgd is not tuned, expected rank-dad"),
        ('tuning={"epochs":[1,900]}', "tuning", "epochs: got 900, expected at most training.epochs"),
        ('tuning={"lr":[0.1,0.2]}', "tuning.lr", "not known here"),
        ('model={"name":"factory","factory":"os.system"}', "model.factory", 'got "os.system"'),
        ("name=null", "name", "got null"),
        ("typo=1", "typo", "not known here"),
        ("training.epoch=1", "training.epoch", "did you mean epochs?"),
        (
            "training.threads=1000000000",
            "training.threads",
            "got 1000000000, expected less than or equal to 1024",
        ),
        ("training.batch_size=1000000000000", "training.batch_size", "less than or equal to 1000000"),
        (f"model.hidden={[4] * 100_000}", "model.hidden", "at most 1000 items"),
        ("model.hidden=[4, 1000000000000]", "model.hidden[1]", "less than or equal to 1000000"),
        (f"model.frozen={['a'] * 1001}".replace("'", '"'), "model.frozen", "at most 1000 items"),
        (f"data.shape={[1] * 17}", "data.shape", "at most 16 items"),
        ("data.shape=[1000000000000]", "data.shape[0]", "less than or equal to 1000000000"),
        (
            'method={"name":"rank-dad","rank":4,"iterations":1000000000}',
            "method.iterations",
            "less than or equal to 10000",
        ),
    ],
    ids=lambda value: value[:40],
)
def test_a_wrong_field_is_named(assignment: str, field: str, said: str) -> None:
    with pytest.raises(SpecError) as error:
        validate(RunSpec, replace(run_document(), [assignment]), file="x.json")
    assert error.value.field == field
    assert said in str(error.value)
    assert str(error.value).startswith(f"x.json: {field}: ")


def test_what_no_kind_of_a_union_takes_is_one_mistake() -> None:
    data = {"reader": "csv", "file": 3, "features": ["a"], "label": "y", "missing_values": {"a": 9}}
    made = run_document(data=data, method={"name": "rank-dad", "rank": 2, "local_steps": 0})
    assert sorted(path for path, _ in problems(RunSpec, made)) == [
        "data.file",
        "data.missing_values.a",
        "method.local_steps",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method": {"name": "rank-dad", "rank": 2}, "tuning": {"rank": [2, 3]}}, "rank: got 3, expected at most"),
        ({"training": {"validation": 0}, "tuning": {"weight_decay": [0, 1]}}, "tuning: needs samples to choose by"),
        (
            {"evaluation": {"name": "k-fold", "folds": 100}, "tuning": {"weight_decay": [*range(8)], "epochs": [1, 2]}},
            "tuning: asks for 1717 trainings, expected at most 1000",
        ),
    ],
)
def test_settings_that_cannot_be_tried_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        run_spec(**changes)


LATE = {"sites": ["a", "b", "c"], "quorum": 2, "staleness": 2}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"federation": LATE | {"quorum": "all"}}, "federation: staleness: got 2, but the quorum is all"),
        ({"federation": LATE | {"quorum": 3}}, "federation: staleness: got 2, but the quorum is 3"),
        ({"federation": LATE | {"staleness": 65}}, "federation.staleness: got 65"),
        ({"federation": LATE | {"staleness": -1}}, "federation.staleness: got -1"),
        (
            {"federation": LATE, "method": {"name": "powersgd", "rank": 2}},
            "federation: staleness: got 2, but a late contribution of powersgd has no place in a later step",
        ),
        ({"federation": LATE, "method": {"name": "edad"}}, "a late contribution of edad has no place"),
        ({"federation": LATE, "method": {"name": "dad"}}, "a late contribution of dad has no place"),
        (
            {"federation": LATE, "method": {"name": "rank-dad", "rank": 2, "preset": "diloco"}},
            "federation: staleness: got 2, but method.moments is kept",
        ),
    ],
)
def test_where_nothing_late_can_join_staleness_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as error:
        run_spec(**changes)
    assert said in str(error.value)
    run_spec(**changes | {"federation": changes["federation"] | {"staleness": 0}})


def test_a_missing_field_is_named() -> None:
    document = run_document()
    del document["data"]["shape"]
    with pytest.raises(SpecError, match=r"data\.shape: is missing"):
        validate(RunSpec, document)
    with pytest.raises(SpecError, match="the whole file"):
        validate(RunSpec, [])


@pytest.mark.parametrize("assignment", ["rank", "=3", "a.b=four", "name.first=3"])
def test_a_malformed_assignment_is_named(assignment: str) -> None:
    with pytest.raises(SpecError, match="--set"):
        replace({"name": "x"}, [assignment])


@pytest.mark.parametrize(("text", "said"), [("{", "line 1, column 2"), ('"\\ud800', "line 1"), ("", "line 1")])
def test_a_file_that_is_not_json_names_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UserError, match=said):
        load_json(path)
    with pytest.raises(UserError, match="cannot be read"):
        load_json(tmp_path / "missing.json")


def test_the_digest_depends_on_meaning_not_on_spelling() -> None:
    spec = run_spec()
    document = json.loads(spec.model_dump_json())
    assert validate(RunSpec, dict(reversed(document.items()))).sha256() == spec.sha256()
    changed: dict[str, Any] = replace(document, ["training.batch_size=9"])
    assert validate(RunSpec, changed).sha256() != spec.sha256()


def test_one_site_cannot_be_left_out() -> None:
    one_site_out = ['evaluation={"name":"leave-one-site-out"}', 'federation.sites=["alone"]']
    with pytest.raises(SpecError, match="federation: sites: got one, but evaluation is leave-one-site-out"):
        validate(RunSpec, replace(run_document(), one_site_out))


def test_a_spec_is_read_from_its_own_file_or_a_simulations(tmp_path: Path) -> None:
    document, path = run_document(), tmp_path / "run.json"
    for held, under in ((document, ""), ({"run": document, "simulation": {}}, "run.")):
        path.write_text(json.dumps(held))
        assert RunSpec.read(path) == run_spec()
        assert RunSpec.read(path, [f"{under}seed=7"]).seed == 7
        with pytest.raises(SpecError, match=f"run.json: {under}seed: got -1"):
            RunSpec.read(path, [f"{under}seed=-1"])
    with pytest.raises(SpecError, match=r"run.json: seed: is not known beside run: did you mean run\.seed\?"):
        RunSpec.read(path, ["seed=7"])


def test_a_dictionary_may_have_lists_as_json_has() -> None:
    document = run_document(federation={"sites": ["a", "b"]})
    spec = RunSpec.model_validate(document)
    assert spec.federation.sites == ("a", "b")
    assert RunSpec.model_validate(spec) is spec
    assert RunSpec.model_validate(document | {"training": spec.training}) == spec
    for wrong in ("1", object(), 1.5):
        with pytest.raises(ValidationError, match="valid integer"):
            RunSpec.model_validate(document | {"seed": wrong})
