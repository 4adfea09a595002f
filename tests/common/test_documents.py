"""The door for JSON, whoever wrote it: data, or one sentence that says what is wrong."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import example, given
from hypothesis import strategies as st

from rankdad.command import run
from rankdad.common.documents import MAX_DEPTH, load_json, parse_json, replace, validate
from rankdad.common.errors import RankdadError, SpecError, UserError, visible
from rankdad.common.gone import GONE
from rankdad.common.spec import RunSpec
from rankdad.simulations.spec import SimulationFile
from tests.conftest import run_document, run_spec

DEEP = "[" * 100_000
BAD: list[str | bytes] = [
    DEEP,
    '{"a":' * 100_000,
    "[" * 101 + "]" * 101,
    '{"rank": ' + "9" * 5000 + "}",
    '{"run": {"rank": 4, "seed": 1, "rank": 400}}',
    '{"a": 1, "\\u0061": 2}',
    '{"data": "a\\u0000b"}',
    '{"\\ud800": 1}',
    "{\n  'a': 1}",
    "",
    "{}".encode("utf-16"),
    b'{"a": "\xff"}',
    b" " * (64 << 20) + b"{}",
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_what_json_can_hold_and_nothing_here_has_is_said_in_a_sentence(tmp_path: Path, data: str | bytes) -> None:
    (tmp_path / "x.json").write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(UserError) as error:
        load_json(tmp_path / "x.json")
    assert error.value.code == "not-json"
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300


def test_depth_and_digits_have_room(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf" + b"[" * MAX_DEPTH + b"9" * 40 + b"]" * MAX_DEPTH)
    assert "9" * 40 in json.dumps(load_json(tmp_path / "x.json"))


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000, '{"a":1,"a":2}', '"\\u0000"', "\ud800"], ids="12345")
def test_assignments_pass_the_same_door(value: str) -> None:
    with pytest.raises(SpecError, match=r"--set: training\.epochs: ") as error:
        replace(run_document(), [f"training.epochs={value}"])
    visible(str(error.value)).encode()
    with pytest.raises(SpecError, match="is nested deeper than 100 levels"):
        replace({}, [".".join("a" * 5000) + "=1"])


def test_names_and_values_of_others_are_shown_short_and_do_not_steer_a_terminal() -> None:
    for changes in ({"\x1b[31m" + "x" * 99_999: 1}, {"model": {"name": "\x1b[31m" + "y" * 99_999}}):
        with pytest.raises(SpecError) as error:
            validate(RunSpec, run_document() | changes)
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 300


def test_a_terminal_shows_every_character_of_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise RankdadError("\x1b]0;owned\x07 \u202edad\nok " + "x" * 10_000, code="x")

    monkeypatch.setattr(sys, "argv", ["rankdad"])
    with pytest.raises(SystemExit):
        run(app)
    said = capsys.readouterr().err
    assert said.startswith("error: \\x1b]0;owned\\x07 \\u202edad\\nok xxx")
    assert len(said) < 5000


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")) | JSON.map(json.dumps))
@example(DEEP)
@example("{" * 5000)
@example("-" + "1" * 4301)
@example("[" * 500 + "]" * 500)
@example('{"a":[],"a":{}}')
def test_whatever_is_read_is_data_or_one_sentence(data: bytes | str) -> None:
    began, found, said = time.monotonic(), None, []
    try:
        found = parse_json(data)
    except ValueError as error:
        said.append(visible(str(error)))
    try:
        validate(RunSpec, found)
    except SpecError as error:
        said.append(str(error))
    assert all(sentence and sentence.isprintable() for sentence in said)
    assert time.monotonic() - began < 5


def test_all_that_is_wrong_is_said_at_once_and_what_nobody_knows_first() -> None:
    document = run_document(tsak=1, epochs=3, model={"name": "mlp", "hidden": 64}, training={"batch_sise": 4})
    del document["data"]
    with pytest.raises(SpecError) as error:
        validate(RunSpec, document)
    assert str(error.value).split("; ") == [
        "training.batch_sise: is not known here: did you mean batch_size?",
        "tsak: is not known here: did you mean task?",
        "epochs: is not known here: it belongs in training or training.schedule or tuning",
        "model.hidden: got 64, expected a list: [64]",
        "data: is missing",
    ]


def test_more_mistakes_than_one_sentence_holds_are_counted() -> None:
    with pytest.raises(SpecError, match=r"; and 92 more$"):
        validate(RunSpec, run_document() | {f"{'x' * 30}{number}": 1 for number in range(100)})


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"autocast": "float16"}, "training.autocast"), ({"loss_scale": 1024}, "training.loss_scale")],
)
def test_what_earlier_versions_knew_is_told_what_takes_its_place(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        run_spec(training=changes)
    assert caught.value.field == field
    assert GONE[field, "float16" if field.endswith("autocast") else None] in str(caught.value)


@pytest.mark.parametrize(
    ("simulation", "key"),
    [
        ({"source": {"name": "digits"}, "relay": {}}, ("simulation.relay", None)),
        ({"source": {"name": "mnist", "path": "mnist.npz"}}, ("source.name", "mnist")),
    ],
)
def test_what_moved_to_the_benchmarks_is_told_where_it_is(
    simulation: dict[str, Any], key: tuple[str, str | None]
) -> None:
    with pytest.raises(SpecError) as caught:
        validate(SimulationFile, {"run": run_document(), "simulation": simulation})
    assert GONE[key] in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"method": {"name": "top-rows"}}, ("method.name", "top-rows")),
        ({"method": {"name": "rank-dad", "rank": 2, "preset": "authors"}}, ("method.preset", "authors")),
        ({"method": {"name": "rank-dad", "rank": 2, "reducer": "published"}}, ("method.reducer", "published")),
        ({"data": {"reader": "ts"}}, ("data.reader", "ts")),
    ],
)
def test_a_kind_or_value_that_went_is_told_what_takes_its_place(changes: dict[str, Any], key: tuple[str, str]) -> None:
    with pytest.raises(SpecError) as caught:
        validate(RunSpec, run_document(**changes))
    assert GONE[key] in str(caught.value)


def test_the_name_that_was_meant_is_looked_for_in_its_own_place_first() -> None:
    document = run_document()
    document["modle"] = document.pop("model")
    with pytest.raises(SpecError, match="modle: is not known here: did you mean model"):
        validate(RunSpec, document)
