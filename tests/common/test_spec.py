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


@pytest.mark.parametrize("name", ["digits.json", "diabetes.json"])
def test_the_files_that_come_with_it_are_valid(name: str) -> None:
    file = validate(SimulationFile, load_json(SPECS / name))
    assert file.run.method.name == "rank-dad"


UNKNOWN = {
    "method.feeedback": 'method={"name":"rank-dad","rank":4,"feeedback":"both"}',
    "method.rank": 'method={"name":"dsgd","rank":4}',
    "method.budget": 'method={"name":"rank-dad","rank":4,"budget":9000}',
    "tuning.lr": 'tuning={"lr":[0.1,0.2]}',
    "typo": "typo=1",
    "training.epoch": "training.epoch=1",
}
INVALID = [
    ("method.rank", ['method={"name":"rank-dad","rank":0}', 'method={"name":"rank-dad","rank":"4"}']),
    ("method.lazy", ['method={"name":"rank-dad","rank":2,"lazy":-1}']),
    ("method.preset", ['method={"name":"rank-dad","rank":2,"preset":"fast"}']),
    ("method.iterations", ['method={"name":"rank-dad","rank":4,"iterations":1000000000}']),
    ("method.wire", ['method={"name":"dsgd","wire":"int4"}', 'method={"name":"edad","wire":"int8"}']),
    ("method", [
        'method={"name":"top-k","wire":"int2","feedback":"none"}',
        'method={"name":"rank-dad","rank":2,"wire":"int4","preset":"converged"}',
        'method={"name":"rank-dad","rank":2,"lazy":2,"feedback":"none"}',
    ]),
    ("training.optimizer.lr", ["training.optimizer.lr=-1"]),
    ("training.optimizer.weight_decay", ["training.optimizer.weight_decay=Infinity"]),
    ("training.epochs", ["training.epochs=1.5"]),
    ("training.threads", ["training.threads=1000000000"]),
    ("training.batch_size", ["training.batch_size=1000000000000"]),
    ("training", [
        "training.validation=0.9",
        'training={"epochs":1,"batch_size":1,"optimizer":{"name":"adam","lr":1},"validation":0,'
        '"early_stopping":{"patience":1}}',
    ]),
    ("federation.sites[1]", ['federation.sites=["a","../x"]']),
    ("federation.sites", ["federation.sites=[]"]),
    ("federation", [
        'federation.sites=["a","a"]',
        'federation.sites=["aggregator"]',
        'federation.regions={"r":["alpha"],"alpha":["beta"]}',
        'federation.regions={"r":["alpha","elsewhere"]}',
        'federation.regions={"r":["alpha"],"s":["alpha"]}',
        'federation.regions={"r":[]}',
        'federation.regions={"r":["s"],"s":["r"]}',
        'federation.regions={"aggregator":["alpha"]}',
        'federation={"sites":["a","b"],"regions":{"r":["a"]},"quorum":1}',
    ]),
    ("tuning", [
        'tuning={"weight_decay":[0.1]}',
        'tuning={"weight_decay":[0.1,0.1]}',
        'tuning={"rank":[1,2]}',
        'tuning={"epochs":[1,900]}',
    ]),
    ("model.factory", ['model={"name":"factory","factory":"os.system"}']),
    ("model.hidden", [f"model.hidden={[4] * 100_000}"]),
    ("model.hidden[1]", ["model.hidden=[4, 1000000000000]"]),
    ("model.frozen", [f"model.frozen={['a'] * 1001}".replace("'", '"')]),
    ("data.file", ['data.file="../../etc/passwd"']),
    ("data.shape", [f"data.shape={[1] * 17}"]),
    ("data.shape[0]", ["data.shape=[1000000000000]"]),
    ("name", ["name=null"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("assignment", "code", "field"),
    [
        *[(assignment, "field-unknown", field) for field, assignment in UNKNOWN.items()],
        *[(assignment, "field-invalid", field) for field, every in INVALID for assignment in every],
        ('method={"name":"powersdg"}', "name-unknown", "method"),
        ('method={"rank":4}', "name-missing", "method"),
    ],
    ids=lambda value: value[:40],
)
def test_a_wrong_field_is_named(assignment: str, code: str, field: str) -> None:
    with pytest.raises(SpecError) as error:
        validate(RunSpec, replace(run_document(), [assignment]), file="x.json")
    assert (error.value.code, error.value.field) == (code, field)
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
    "changes",
    [
        {"method": {"name": "rank-dad", "rank": 2}, "tuning": {"rank": [2, 3]}},
        {"training": {"validation": 0}, "tuning": {"weight_decay": [0, 1]}},
        {"evaluation": {"name": "k-fold", "folds": 100}, "tuning": {"weight_decay": [*range(8)], "epochs": [1, 2]}},
        {"evaluation": {"name": "leave-one-site-out"}, "federation": {"sites": ["alone"]}},
    ],
)
def test_settings_that_cannot_be_tried_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        run_spec(**changes)
    run_spec(**changes | {"tuning": None, "federation": {"sites": ["alone", "other"]}})


LATE = {"sites": ["a", "b", "c"], "quorum": 2, "staleness": 2}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"federation": LATE | {"quorum": "all"}}, "federation"),
        ({"federation": LATE | {"quorum": 3}}, "federation"),
        ({"federation": LATE | {"staleness": 65}}, "federation.staleness"),
        ({"federation": LATE | {"staleness": -1}}, "federation.staleness"),
        ({"federation": LATE, "method": {"name": "powersgd", "rank": 2}}, "federation"),
        ({"federation": LATE, "method": {"name": "edad"}}, "federation"),
        ({"federation": LATE, "method": {"name": "dad"}}, "federation"),
        ({"federation": LATE, "method": {"name": "rank-dad", "rank": 2, "preset": "diloco"}}, "federation"),
    ],
)
def test_where_nothing_late_can_join_staleness_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as error:
        run_spec(**changes)
    assert (error.value.field, "staleness: got" in str(error.value)) == (field, True)
    run_spec(**changes | {"federation": changes["federation"] | {"staleness": 0}})


def test_a_missing_field_is_named() -> None:
    document = run_document()
    del document["data"]["shape"]
    with pytest.raises(SpecError, match=r"data\.shape: is missing"):
        validate(RunSpec, document)
    with pytest.raises(SpecError, match="the whole object"):
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


def test_a_named_method_is_the_one_that_others_read_whatever_the_model_is() -> None:
    for method in ({"name": "rank-dad", "rank": 2}, {"name": "rank-dad", "rank": 4}, {"name": "dsgd"}):
        spec = run_spec(method=method, model={"name": "linear"})
        again = validate(RunSpec, spec.document())
        assert (again.method, again.sha256()) == (spec.method, spec.sha256())
