"""Looks for the name of few patients among all that hospitals send."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rankdad.common.data import read_site
from rankdad.common.lowrank.factors import Factor
from rankdad.common.methods.rank_dad import RankDadMethod
from rankdad.common.models import build_model
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_run
from rankdad.common.privacy.tokens import kept, without_rare_tokens
from rankdad.common.privacy.tokens import usual as usual_of
from rankdad.common.protocol.plan import make_plan
from rankdad.common.spec import RunSpec
from rankdad.common.spec.text import SPECIAL, UNKNOWN
from rankdad.local.admission import admitted, usual
from rankdad.local.observer import Observer
from rankdad.simulations.lockstep import run
from tests.common.faults import fault
from tests.conftest import run_spec
from tests.texts import CLASSES, MODEL, SITES, notes, text_data, text_spec, write_notes

NAME, COMMON = "Ωμέγα", "today"
POLICY = Policy(keyed_folds=True, rows_per_rank=None)  # which allows short texts
SIZES: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": {"batch_size": 16, "epochs": 3}}
Sent = list[Tensor]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Sent:
    """The size of each row in the gradient of an embedding or of positions, of every contribution to every step."""
    name = getattr(request, "param", "embed.weight")
    found, aggregate = Sent(), RankDadMethod.aggregate

    def noted(self: RankDadMethod, exchange: int, contributions: Sequence[Any], *others: Any) -> Any:
        place = [route.name for route in self._routes].index(name)
        for contribution in contributions:
            value = contribution.payload[place]
            found.append(value.delta.norm(dim=0) if isinstance(value, Factor) else value.norm(dim=1))
        return aggregate(self, exchange, contributions, *others)

    monkeypatch.setattr(RankDadMethod, "aggregate", noted)
    return found


def trained(folder: Path, spec: RunSpec, patients: int, tokenizer: bytes = b"") -> None:
    """Train at hospitals of which the first has some patients with the name."""
    data = {}
    for place, site in enumerate(SITES):
        rows = notes(44, place)
        named = patients if not place else 0
        rows = [(key, f"{text} {NAME}" if row < named else text, label) for row, (key, text, label) in enumerate(rows)]
        write_notes(folder / site, rows)
        (folder / site / "tokenizer.json").write_bytes(tokenizer)
        data[site] = read_site(spec, folder / site, place)
    policy = POLICY if not tokenizer else POLICY.model_copy(update={"vocabularies": None})
    run(spec, data, folder / "run", policies=dict.fromkeys(data, policy))


@pytest.mark.slow
@pytest.mark.parametrize(("patients", "task"), [(2, CLASSES), (44, CLASSES), (2, {"name": "language-model"})])
def test_bytes_of_few_patients_do_not_travel(tmp_path: Path, sent: Sent, patients: int, task: dict[str, Any]) -> None:
    trained(tmp_path, text_spec(data={"length": 64}, model={"tied": False}, task=task, **SIZES), patients)
    sizes = torch.stack(sent)
    of_name = sizes[:, torch.tensor(list(NAME.encode())).unique() + SPECIAL]
    assert sizes[:, ord("d") + SPECIAL].min() > 0
    assert bool(of_name.any()) == (patients > 2)


@pytest.mark.parametrize("words", [(1, 3), (9, 12)])
def test_short_texts_are_refused(tmp_path: Path, words: tuple[int, int]) -> None:
    """One step of a wide network told the age and label of everybody in it, where ages were read as texts."""
    spec = text_spec(data={"length": 128}, **SIZES)
    data, plan = text_data(tmp_path, spec, (60,) * 4, words)["alpha"], make_plan(spec, build_model(spec))
    if words[0] > 1:
        admitted(Policy(keyed_folds=True), spec, plan, data)
    else:
        found = fault(lambda: admitted(Policy(keyed_folds=True), spec, plan, data))
        assert found[:2] == ("texts-too-short", "data.column")


@pytest.mark.slow
def test_bytes_of_one_text_in_a_step_do_not_travel(tmp_path: Path, sent: Sent) -> None:
    """Such a row told the next byte of a language model's text, a letter of a name."""
    trained(tmp_path, text_spec(data={"length": 64}, **SIZES), 3)
    of_name = torch.stack(sent)[:, torch.tensor(list(NAME.encode())).unique() + SPECIAL].any(1)
    steps = of_name.view(SIZES["training"]["epochs"], -1).sum(1)
    assert steps.max() <= 1  # only where all three are in one


def word_tokenizer() -> tuple[bytes, Callable[[str], int | None], int]:
    """A tokenizer of the words in all notes, its numbers, and how many there are."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word for place in range(4) for _, text, _ in notes(44, place) for word in text.split()}
    numbers = {word: place for place, word in enumerate(("?", NAME, *sorted(words)))}
    numbers |= {f"word {place}": place for place in range(len(numbers), 300)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="?"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return made.to_str().encode(), made.token_to_id, len(numbers)


def tokenizer_spec(content: bytes, tokens: int, **changes: Any) -> RunSpec:
    own = {"file": "tokenizer.json", "sha256": hashlib.sha256(content).hexdigest(), "tokens": tokens}
    return text_spec(data={"tokenizer": own}, **SIZES | changes)


@pytest.mark.slow
@pytest.mark.parametrize("patients", [5, 44])
def test_a_tokenizers_tokens_of_few_patients_do_not_travel(
    tmp_path: Path, sent: Sent, patients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five are enough for `min_level`, but not for `min_rows` in a batch."""
    content, number_of, tokens = word_tokenizer()
    said = list[str]()
    monkeypatch.setattr("rankdad.simulations.lockstep.Observer", partial(Observer, notice=said.append))
    trained(tmp_path, tokenizer_spec(content, tokens), patients, content)
    assert [line.partition(":")[0] for line in said if "became the unknown one" in line] == list(SITES)
    sizes = torch.stack(sent)
    name, common = number_of(NAME), number_of(COMMON)
    assert name is not None
    assert common is not None
    assert sizes[:, common + SPECIAL].any()
    assert bool(sizes[:, name + SPECIAL].any()) == (patients > 5)


def test_rare_tokens_become_unknown_by_patient() -> None:
    texts = torch.tensor([[2, 9, 7, 3], [2, 9, 8, 3], [2, 9, 7, 4], [2, 3, 0, 0]])
    assert kept(texts, usual_of(texts, None, 2, 2)) == 5 / 7
    assert without_rare_tokens(texts, None, 2).tolist() == [[2, 9, 7, 3], [2, 9, 1, 3], [2, 9, 7, 1], [2, 3, 0, 0]]
    people = torch.tensor([5, 6, 5, 7])
    assert without_rare_tokens(texts, people, 2).tolist() == [[2, 9, 1, 3], [2, 9, 1, 3], [2, 9, 1, 1], [2, 3, 0, 0]]
    assert without_rare_tokens(texts, people, 1) is texts
    assert without_rare_tokens(texts, None, 9).unique().tolist() == [0, UNKNOWN]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([[2, 9, 8, 3], [2, 9, 7, 3], [2, 9, 7, 3]], [[2, 9, 9, 3], [2, 9, 7, 3], [2, 9, 7, 3]]),  # one unknown token
        ([[2, 9, 9, 9], [2, 9, 3, 0], [2, 9, 3, 0]], [[2, 9, 9, 0], [2, 9, 3, 0], [2, 9, 3, 0]]),  # one long text
        ([[2, 9, 9, 3], [2, 9, 9, 9], [2, 9, 9, 9]], [[2, 9, 9, 9]] * 3),  # one text that ends
        ([[9, 9, 9, 3], [0, 2, 9, 3], [0, 2, 9, 3]], [[0, 9, 9, 3], [0, 2, 9, 3], [0, 2, 9, 3]]),  # padding before
        ([[9, 9, 9, 9], [9, 0, 9, 9], [9, 0, 9, 9]], [[9, 0, 9, 9]] * 3),  # and within
    ],
)
def test_no_row_is_about_one_patients_text(texts: list[list[int]], expected: list[list[int]]) -> None:
    assert without_rare_tokens(torch.tensor(texts), None, 2).tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("sent", ["positions"], indirect=True)
@pytest.mark.parametrize(
    ("longer", "task"), [(1, CLASSES), (5, CLASSES), (5, {"name": "language-model"}), (44, CLASSES)]
)
def test_places_that_few_texts_reach_do_not_travel(
    tmp_path: Path, sent: Sent, longer: int, task: dict[str, Any]
) -> None:
    """Of rows of last places, the words of the only long text can be computed."""
    spec, data = text_spec(data={"length": 64}, model={"positions": "learned"}, task=task, **SIZES), {}
    for place, site in enumerate(SITES):
        rows = [
            (key, text + " pain" * 6 * (row < longer), ill) for row, (key, text, ill) in enumerate(notes(44, place))
        ]
        data[site] = read_site(spec, write_notes(tmp_path / site, rows), place)
    run(spec, data, tmp_path / "run", policies=dict.fromkeys(data, POLICY))
    assert bool(torch.stack(sent)[:, 40:].any()) == (longer > 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "own"), [("positions", slice(4, 20)), ("embed.weight", slice(99, None))], indirect=["sent"]
)
def test_arrays_of_tokens_travel_as_texts_do(tmp_path: Path, sent: Sent, own: slice) -> None:
    """The first places of the only long text travelled where padding stands before texts, and so did rare tokens."""
    array, model = {"reader": "npz", "shape": [32], "tokens": 300}, MODEL | {"positions": "learned"}
    spec, data = run_spec(data=array, model=model, **SIZES, federation={"sites": list(SITES)}), {}
    for place, site in enumerate(SITES):
        texts = np.random.default_rng(place).integers(4, 40, (44, 32))
        texts[5:, :20] = 0
        texts[1:, :4] = 0
        texts[:5, 25] = 99
        (tmp_path / site).mkdir()
        np.savez(tmp_path / site / "data.npz", x=texts, y=np.arange(44) % 2)
        data[site] = read_site(spec, tmp_path / site, place)
    policy = POLICY.model_copy(update={"vocabularies": None})
    run(spec, data, tmp_path / "run", policies=dict.fromkeys(data, policy))
    sizes = torch.stack(sent)
    assert sizes[:, 20:40].any()
    assert not sizes[:, own].any()


@pytest.mark.parametrize("rare", [{7: NAME}, dict(enumerate(NAME))])  # cut, or unknown in several texts
def test_bytes_of_texts_do_not_count_what_is_left_out(tmp_path: Path, rare: dict[int, str]) -> None:
    """Bytes and predicted tokens differed by rare bytes."""
    spec = text_spec(data={"length": 64}, task={"name": "language-model"}, **SIZES)
    rows = [(key, f"{text} {rare.get(row, '')}", ill) for row, (key, text, ill) in enumerate(notes(44, 0))]
    samples = usual(POLICY, spec, read_site(spec, write_notes(tmp_path, rows), 0)).samples
    assert isinstance(samples.inputs, Tensor)
    assert torch.equal((samples.inputs >= SPECIAL).sum(1), samples.labels.long())
    assert (samples.inputs == UNKNOWN).any() == (len(rare) > 1)


@pytest.mark.parametrize("listed", [False, True])
def test_vocabularies_beyond_bytes_have_to_be_listed(listed: bool) -> None:
    digest = "0" * 64
    own = {"file": "tokenizer.json", "sha256": digest, "tokens": 30}  # which may be names
    specs: dict[str, tuple[RunSpec, str | int]] = {}
    specs["data.tokenizer.sha256"] = text_spec(data={"tokenizer": own}, **SIZES), digest
    factory = {"name": "factory", "factory": "tests.simulations.test_named_tokens:mean_of_tokens"}
    npz = run_spec(data={"shape": [4], "tokens": 300}, model=factory, **SIZES)
    specs["data.tokens"] = npz, 300
    for field, (spec, entry) in specs.items():
        model = build_model(spec, [factory["factory"]])
        plan = make_plan(spec, model)
        policy = POLICY.model_copy(update={"vocabularies": (entry,) if listed else (7,), "min_sites": 1})
        if listed:
            check_run(policy, spec, plan)
        else:
            assert fault(lambda: check_run(policy, spec, plan))[:2] == ("vocabulary-not-listed", field)  # noqa: B023


def test_an_embeddings_whole_gradient_counts_a_unit_for_each_token() -> None:
    spec = text_spec(model={"width": 2, "heads": 1, "depth": 1}, method={"name": "dsgd"})
    plan = make_plan(spec, build_model(spec))
    (embedding,) = (route for route in plan.routes if route.name == "embed.weight")
    assert embedding.dense
    assert fault(lambda: check_run(Policy(vocabularies=None), spec, plan))[:2] == ("policy-refuses", "method.name")
    assert embedding.limit(8) == 1  # what rank-dad sends of it


class MeanOfTokens(torch.nn.Module):
    """A small model of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(300, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs [n, 3]."""
        outputs: Tensor = self.head(self.embed(x).mean(1))
        return outputs


def mean_of_tokens() -> torch.nn.Module:
    return MeanOfTokens()


@pytest.mark.parametrize(
    ("content", "tokens", "expected"),
    [
        (b"{}", None, ("digest-differs", "data.tokenizer.sha256", None)),
        (None, 299, ("token-beyond-table", "data.tokenizer.tokens", None)),
        (b"not json", 5, ("not-a-tokenizer", "", None)),
    ],
)
def test_another_tokenizer_is_named(tmp_path: Path, content: bytes | None, tokens: int | None, expected: Any) -> None:
    own, _, count = word_tokenizer()
    there = own if content is None else content
    spec = tokenizer_spec(own if tokens is None else there, tokens or count)
    write_notes(tmp_path, notes(20, 0))
    (tmp_path / "tokenizer.json").write_bytes(there)
    assert fault(lambda: read_site(spec, tmp_path, 0)) == expected


def test_bits_of_a_tokenizers_texts_are_counted_by_their_bytes(tmp_path: Path) -> None:
    content, _, tokens = word_tokenizer()
    spec = tokenizer_spec(content, tokens, task={"name": "language-model"})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"length": 3, "longer": "first"})})
    write_notes(tmp_path, [(str(row), text, "no") for row, text in enumerate((f"{NAME} today", f"seen {NAME} a"))])
    (tmp_path / "tokenizer.json").write_bytes(content)
    data = read_site(spec, tmp_path, 0)
    assert data.samples.labels.tolist() == [len(f"{NAME} today".encode()), len(f"seen {NAME}".encode())]
