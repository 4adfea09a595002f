"""A site of several processes: the weights of one process, a rank that fails or dies, and what it goes on from."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankdad.common.run.checkpoints import newest, round_of
from rankdad.common.tensors import weights_sha256
from tests.conftest import write_policy, write_site
from tests.e2e.house import LONGEST, House, furthest, house
from tests.texts import CLASSES, DATA, LABEL, MODEL

SGD = {"epochs": 3, "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}}
ADAM = {"epochs": 3, "dtype": "float64"}  # divides by roots of tiny squares: in float32 what is rounded shows
NOTES: dict[str, Any] = {"task": CLASSES, "data": DATA | LABEL, "model": MODEL | {"positions": "learned"}}
LANGUAGE: dict[str, Any] = {"task": {"name": "language-model"}, "data": DATA, "model": MODEL}
LONG = SGD | {"epochs": 24, "dtype": "float64"}  # in float32 what is rounded grows to 1e-5 in 120 steps
METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rank-dad": ({"name": "rank-dad", "rank": 2}, SGD),
    "rank-dad, adam": ({"name": "rank-dad", "rank": 2}, ADAM),
    "dad, accumulated": ({"name": "dad"}, SGD | {"batch_size": 3, "accumulate": 3}),
    "edad, one sample a step": ({"name": "edad"}, SGD | {"epochs": 1, "batch_size": 1}),
    "powersgd": ({"name": "powersgd", "rank": 2}, SGD),
    "dsgd, factored moments": (
        {"name": "dsgd"},
        ADAM | {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}},
    ),
    "local steps": ({"name": "rank-dad", "rank": 2, "local_steps": 2, "moments": "kept"}, ADAM),
}
CLIPPED = ADAM | {"clip": 0.2, "optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.1}}
SHARDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rank-dad, adam, clipped": ({"name": "rank-dad", "rank": 2}, CLIPPED),
    "dad, accumulated": ({"name": "dad"}, SGD | {"batch_size": 3, "accumulate": 3}),
    "dsgd, one sample a step": ({"name": "dsgd"}, SGD | {"epochs": 1, "batch_size": 1}),
    "powersgd": ({"name": "powersgd", "rank": 2}, SGD),
}

VIT = {"name": "vit", "patch": 1, "width": 8, "depth": 1, "heads": 2}
IMAGES: dict[str, Any] = {"data": {"shape": [2, 3]}, "model": VIT}
DROPOUT: dict[str, Any] = {"model": {"name": "mlp", "hidden": [16, 8, 4], "dropout": 0.3, "frozen": ["1.*"]}}
MESHES: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "perceptron": ({"data": 2, "tensor": 2}, {"method": {"name": "rank-dad", "rank": 2}, "training": CLIPPED}),
    "decoder": ({"shard": 2, "tensor": 2}, {"method": {"name": "dad"}, "training": CLIPPED, **LANGUAGE}),
    "encoder": ({"data": 2, "tensor": 2}, {"method": {"name": "dsgd"}, "training": CLIPPED, **NOTES}),
    "images": ({"data": 2, "shard": 2}, {"method": {"name": "powersgd", "rank": 2}, "training": SGD, **IMAGES}),
    "images, top-k": ({"tensor": 2}, {"method": {"name": "top-k"}, "training": SGD, **IMAGES}),
    "dropout": ({"tensor": 2}, {"method": {"name": "rank-dad", "rank": 2}, "training": SGD, **DROPOUT}),
    "stages": ({"data": 2, "pipeline": 2}, {"method": {"name": "rank-dad", "rank": 2}, "training": SGD, **LANGUAGE}),
    "eight ranks": ({"data": 2, "tensor": 2, "pipeline": 2}, {"method": {"name": "dsgd"}, "training": SGD, **NOTES}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.exhaustive] * ("eight" in case)) for case in MESHES]
)
def test_a_mesh_of_ranks_ends_with_the_weights_of_one_process(tmp_path: Path, case: str) -> None:
    mesh, changes = MESHES[case]
    ended = []
    for size in (1, math.prod(mesh.values())):
        with house(tmp_path / str(size), samples=26, sharing=3, **changes) as found:
            found.share(mesh if size > 1 else "data")
            ended.append(found.done(size))
    assert furthest(*ended) < 1e-5


@pytest.mark.exhaustive
def test_other_meshes_go_on_from_a_checkpoint(tmp_path: Path) -> None:
    training = LONG | {"epochs": 16, "optimizer": {"name": "adam", "lr": 0.01}}
    changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": training, **NOTES}
    with house(tmp_path / "undisturbed", **changes) as found:
        undisturbed = found.done(1)
    with house(tmp_path / "others", **changes) as found:
        meshes: list[tuple[int, Any, int]] = [(4, {"tensor": 2, "pipeline": 2}, 56), (1, "data", 62), (2, "fsdp", 68)]
        for size, mesh, steps in meshes:
            found.share(mesh)
            ranks = found.start(size)
            found.until(steps)
            ranks[-1].kill()
            said = found.ended(30)
            assert size == 1 or said[0].count(f"rank {size - 1} of 0 to {size - 1} no longer answers") == 1, said
            assert "Traceback" not in "".join(said)
        found.share({"data": 2, "tensor": 2})
        assert furthest(found.done(4), undisturbed) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "changes", "expected"),
    [
        ({"data": 2, "tensor": 2}, {}, ("parallel-does-not-fit", "parallel")),
        ({"tensor": 3}, {}, ("model-cannot-be-divided", "parallel.tensor")),
        ({"tensor": 3}, {"method": {"name": "edad"}}, ("parallel-does-not-fit", "parallel")),
    ],
)
def test_a_mesh_that_does_not_fit_is_named_once_and_all_end(
    tmp_path: Path, mesh: dict[str, int], changes: dict[str, Any], expected: tuple[str, str]
) -> None:
    with house(tmp_path, **changes) as found:
        found.share(mesh)
        ranks = found.start(3)
        said = found.ended(20)
        assert all(rank.returncode == 2 for rank in ranks)
        assert "".join(said).count("error: ") == 1, said
        code, field = expected
        assert f"error: {field}: " in said[0]
        assert f"[{code}]" in said[0]


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", METHODS)
def test_ranks_end_with_the_weights_of_one_process_and_again_with_the_same_bits(tmp_path: Path, case: str) -> None:
    changes: dict[str, Any] = dict(zip(("method", "training"), METHODS[case], strict=True))
    # Patients have no more than a share of a step; what is left of a unit may be 0, whose rounding Adam makes large.
    shared = 1 if "one sample" in case or "rank-dad, adam" in case else 3
    ended = {}
    for number, size in enumerate((1, 2, 4, 4)):
        with house(tmp_path / str(number), both=True, samples=26, sharing=shared, **changes) as found:
            ended[number] = found.done(size)
    assert furthest(ended[0], ended[1]) < 1e-5
    assert furthest(ended[0], ended[2]) < 1e-5
    assert weights_sha256(ended[2]) == weights_sha256(ended[3])


@pytest.mark.slow
def test_ranks_that_are_killed_go_on_to_the_same_bits(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": LONG}
    with house(tmp_path / "undisturbed", **changes) as found:
        undisturbed = found.done(2)
    with house(tmp_path / "killed", **changes) as found:
        first, second = found.start(2)
        found.until(60)
        second.kill()
        said = found.ended(20)
        assert said[0].count("rank 1 of 0 to 1 no longer answers") == 1, said
        assert "Traceback" not in said[0]
        assert not found.served.aggregator.ended, "the site comes back"
        assert not found.served.aggregator.recorder.progress.problems
        first, second = found.start(2)
        found.until(90)
        first.kill()
        said = found.ended(30)
        assert said[1].count("rank 0 of 0 to 1 no longer answers") == 1, said
        for rank in found.start(2):
            rank.kill()
        found.ended(20)
        assert weights_sha256(found.done(2)) == weights_sha256(undisturbed)


@pytest.mark.slow
def test_two_ranks_that_take_a_part_of_each_step_have_the_bits_of_one_process_that_takes_both(tmp_path: Path) -> None:
    """Adam in float32, too: it shows what is rounded, and here nothing is rounded otherwise."""
    training = {"epochs": 3, "batch_size": 4, "accumulate": 2}  # of 17 samples: steps of 3 + 3, 3 + 3 and 3 + 2
    ended = []
    for size in (1, 2):
        changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": training, "samples": 26}
        changes["sharing"] = 3
        with house(tmp_path / str(size), **changes) as found:
            ended.append(weights_sha256(found.done(size)))
    assert ended[0] == ended[1]


@pytest.mark.slow
@pytest.mark.parametrize("case", SHARDED)
def test_ranks_with_rows_of_the_weights_end_as_one_process_and_again_with_the_same_bits(
    tmp_path: Path, case: str
) -> None:
    changes: dict[str, Any] = dict(zip(("method", "training"), SHARDED[case], strict=True))
    shared = 1 if "one sample" in case or "rank-dad, adam" in case else 3
    ended = {}
    for number, size in enumerate((1, 3, 3)):
        with house(tmp_path / str(number), both=True, samples=26, sharing=shared, **changes) as found:
            found.share("fsdp" if number else "data")
            ended[number] = found.done(size)
    assert furthest(ended[0], ended[1]) < 1e-5
    assert weights_sha256(ended[1]) == weights_sha256(ended[2])


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["data", "fsdp"])
def test_ranks_go_through_folds_tuning_and_references_as_one_process(tmp_path: Path, parallel: str) -> None:
    """A model whose candidate, fold and references come one after the other; rows of weights have no local one."""
    references = ["linear", "site", *["local"] * (parallel == "data")]
    evaluation = {"name": "k-fold", "folds": 2, "references": references}
    changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": ADAM | {"epochs": 2}}
    changes |= {"tuning": {"weight_decay": [0.0, 0.5]}, "evaluation": evaluation}
    ended, tested = [], []
    for size in (1, 2):
        with house(tmp_path / str(size), **changes) as found:
            found.share(parallel if size > 1 else "data")
            ended.append(found.done(size))
            test = found.served.aggregator.state.test
            assert test is not None
            tested.append(test.values["accuracy"])
    assert furthest(*ended) < 1e-5
    assert tested[0] == tested[1]


@pytest.mark.exhaustive
def test_ranks_with_rows_go_on_to_the_same_bits_and_other_ranks_from_their_checkpoint(tmp_path: Path) -> None:
    training = LONG | {"epochs": 16, "optimizer": {"name": "adam", "lr": 0.01}}
    changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": training}
    with house(tmp_path / "undisturbed", **changes) as found:
        found.share("fsdp")
        undisturbed = found.done(2)
    with house(tmp_path / "killed", **changes) as found:
        found.share("fsdp")
        _, second = found.start(2)
        found.until(56)
        second.kill()
        said = found.ended(30)
        assert said[0].count("rank 1 of 0 to 1 no longer answers") == 1, said
        assert "Traceback" not in said[0]
        assert not found.served.aggregator.recorder.progress.problems
        assert weights_sha256(found.done(2)) == weights_sha256(undisturbed)
    with house(tmp_path / "others", **changes) as found:
        for parallel, size in (("fsdp", 3), ("data", 1)):
            found.share(parallel)
            ranks = found.start(size)
            found.until(56 if size == 3 else 66)
            for rank in ranks:
                rank.kill()
            found.ended(20)
        found.share("fsdp")
        assert furthest(found.done(2), undisturbed) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["data", "fsdp"])
def test_ranks_that_have_lost_their_checkpoints_go_on_from_the_aggregators(tmp_path: Path, parallel: str) -> None:
    changes: dict[str, Any] = {"method": {"name": "dsgd"}, "training": LONG | {"epochs": 16}}
    with house(tmp_path / "undisturbed", **changes) as found:
        undisturbed = found.done(1)
    with house(tmp_path / "killed", **changes) as found:
        found.share(parallel)
        ranks = found.start(2)
        found.until(56)
        for rank in ranks:
            rank.kill()
        found.ended(20)
        for path in (found.folder / "out" / "checkpoints").rglob("*.safetensors"):
            path.unlink()
        assert furthest(found.done(2), undisturbed) < 1e-5
        assert (found.folder / "out" / "notices.txt").exists()


def ranks_of(torchrun: int) -> dict[str, int]:
    """Return the processes that torchrun has started, by rank."""
    found = dict[str, int]()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == torchrun:
                variables = dict(
                    one.split("=", 1) for one in (folder / "environ").read_text().split("\0") if "=" in one
                )
                found[variables["RANK"]] = int(folder.name)
    return found


def torchrun(found: House) -> subprocess.Popen[str]:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rankdad", "site")
    command = [sys.executable, *words, str(found.folder / "alpha.json")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "parallel"), [(signal.SIGINT, "data"), pytest.param(signal.SIGTERM, "fsdp", marks=pytest.mark.exhaustive)]
)
def test_torchrun_that_is_stopped_goes_on_from_that_step(tmp_path: Path, stop: signal.Signals, parallel: str) -> None:
    changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": LONG}
    with house(tmp_path / "undisturbed", **changes) as found:
        found.share(parallel)
        undisturbed = found.done(2)
    with house(tmp_path / "stopped", **changes) as found:
        found.share(parallel)
        process = torchrun(found)
        found.until(60, 3 * LONGEST)
        process.send_signal(stop)
        out, said = process.communicate(timeout=LONGEST)
        state, kept = found.served.aggregator.state, newest(found.folder / "out" / "checkpoints")
        assert said.count("error: ") == said.count(f"error: stopped by {stop.name} [stopped]") == 1, said
        assert f"alpha: stopped after step {state.steps}; start it again to continue" in out
        assert kept is not None
        assert round_of(kept) == state.round
        assert not found.served.aggregator.recorder.progress.problems
        assert weights_sha256(found.done(2)) == weights_sha256(undisturbed)


@pytest.mark.exhaustive
def test_torchrun_ends_with_the_rank_that_is_killed_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"method": {"name": "rank-dad", "rank": 2}, "training": LONG}
    with house(tmp_path / "undisturbed", **changes) as found:
        undisturbed = found.done(2)
    with house(tmp_path / "killed", **changes) as found:
        process = torchrun(found)
        found.until(60)
        os.kill(ranks_of(process.pid)["1"], signal.SIGKILL)
        _, said = process.communicate(timeout=40)
        assert process.returncode
        assert said.count("error: ") == said.count("error: rank 1 of 0 to 1 no longer answers") == 1, said
        assert not found.served.aggregator.recorder.progress.problems
        process = torchrun(found)
        found.until(80)
        for pid in (process.pid, *ranks_of(process.pid).values()):
            os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=20)
        process = torchrun(found)
        out, said = process.communicate(timeout=2 * LONGEST)
        assert process.returncode == 0, said
        assert out.count("alpha: done after 24 epochs") == 1
        assert weights_sha256(found.weights()) == weights_sha256(undisturbed)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_ranks_lets_the_site_finish_its_step(tmp_path: Path, stop: signal.Signals) -> None:
    with house(tmp_path, method={"name": "dad"}, training=LONG) as found:
        ranks = found.start(2)
        found.until(30)
        for rank in ranks:
            rank.send_signal(stop)
        said = found.ended(20)
        assert ranks[0].returncode == 128 + stop
        assert said[0].count("error: ") == 1, said
        assert f"stopped by {stop.name}" in said[0]
        assert not said[1]
        assert list((tmp_path / "out" / "checkpoints").rglob("*.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("bad data", "rank 2: {}/other/data.npz: "),
        ("other data", "rank 2: has other data than rank 0"),
        ("other policy", "rank 2: has another policy than rank 0"),
        ("other spec", "rank 2: {}/other/spec.json: spec: is not the run that "),
        ("bad file", "rank 2: {}/other.json: patience: "),
        ("no gpu", "device: got cuda, but this machine has no GPU"),
        ("nan", "the training loss in step "),
    ],
)
def test_a_rank_that_cannot_go_on_is_named_once_and_all_end(tmp_path: Path, what: str, told: str) -> None:
    with house(tmp_path, method={"name": "dad"}, training=SGD | {"epochs": 1}) as found:
        fields = json.loads((tmp_path / "alpha.json").read_text())
        other = write_site(tmp_path / "other", 50, 0 if what != "other data" else 7)
        if what == "bad data":
            (other / "data.npz").write_bytes(b"no archive")
        elif what == "other spec":
            document = found.served.aggregator.spec.model_dump(mode="json") | {"seed": 7}
            (other / "spec.json").write_text(json.dumps(document))
            fields["spec"] = str(other / "spec.json")
        elif what == "other policy":  # each rank would limit its own rows
            fields["policy"] = write_policy(other, min_rows=3, min_level=3)
        fields["data"] = str(other)
        fields |= {"bad file": {"patience": -1}, "no gpu": {"device": "cuda"}}.get(what, {})
        (tmp_path / "other.json").write_text(json.dumps(fields))
        if what == "nan":
            data = dict(np.load(tmp_path / "alpha" / "data.npz"))
            data["x"][::7] = 3e38
            np.savez(tmp_path / "alpha" / "data.npz", **data)
        files = dict.fromkeys(range(3), tmp_path / "other.json") if what == "no gpu" else {2: tmp_path / "other.json"}
        ranks = found.start(3, files if what != "nan" else None)
        deadline = time.monotonic() + LONGEST
        while all(rank.poll() is None for rank in ranks):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        said = found.ended(20)
        assert all(rank.returncode for rank in ranks), "all end soon after the first"
        assert "".join(said).count("error: ") == 1, said
        assert told.format(tmp_path) in said[0], said
        assert "Traceback" not in "".join(said)
        problem = found.served.aggregator.recorder.progress.problems.get("alpha", "")
        assert str(tmp_path) not in problem
