"""Ranks of a site, in short: what they add up to at rank 0, and models of which they cannot share a batch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore

from rankdad.common.collectives import all_gather_bytes
from rankdad.common.errors import SpecError, UserError
from rankdad.common.lowrank.factors import Factor
from rankdad.common.models import build_model
from rankdad.local.ranks.divided import check_divided
from rankdad.local.ranks.group import LostRankError, RankError, Ranks
from rankdad.local.ranks.pipeline import check_stages
from rankdad.local.ranks.sharing import check_mesh, check_model, pooled
from rankdad.local.ranks.tensor import pairs
from rankdad.local.shutdown_signals import ShutdownError, ShutdownSignals
from tests.conftest import run_spec, site_config
from tests.ports import free_port
from tests.ranks import run_ranks
from tests.warm import CONTEXT

ROWS = (0, 2)  # of the ranks' factors: one has no samples


def parts_of(rank: int) -> tuple[Factor | torch.Tensor, ...]:
    """A captured weight, one that rank 1 has used outside its layer, and a matrix."""
    generator = torch.Generator().manual_seed(rank)
    first, second = (
        Factor(*(torch.randn(ROWS[rank], width, generator=generator) for width in (4, 5))) for _ in range(2)
    )
    matrix = torch.randn(2, 3, generator=generator)
    return first, second.gradient() if rank else second, matrix


def at_a_rank() -> tuple[list[list[float]], float]:
    rank = torch.distributed.get_rank()
    found = pooled(parts_of(rank), rank + 0.5)
    first, second, third = found[0]
    assert isinstance(first, Factor)
    assert isinstance(second, torch.Tensor)
    assert isinstance(third, torch.Tensor)
    return [m.reshape(-1).tolist() for m in (first.delta, first.activation, second, third)], found[1]


@pytest.mark.slow
def test_all_ranks_have_the_rows_of_all_in_their_order_and_the_sums_of_what_are_no_factors() -> None:
    answers = run_ranks(2, at_a_rank)
    parts = [parts_of(rank) for rank in range(2)]
    factors = [part[0] for part in parts if isinstance(part[0], Factor)]
    expected = [
        torch.cat([factor.delta for factor in factors]),
        torch.cat([factor.activation for factor in factors]),
        sum((one.gradient() if isinstance(one, Factor) else one for _, one, _ in parts), torch.zeros(4, 5)),
        sum((one for *_, one in parts if isinstance(one, torch.Tensor)), torch.zeros(2, 3)),
    ]
    values, loss = answers[0]
    for value, wanted in zip(values, expected, strict=True):
        torch.testing.assert_close(torch.tensor(value).view(wanted.shape), wanted)
    assert loss == 2.0
    assert answers[1] == answers[0]


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)])
def test_a_model_with_statistics_of_a_whole_batch_is_refused_by_its_layers_name(layer: nn.Module) -> None:
    with pytest.raises(SpecError, match=rf"^model: 1 \({type(layer).__name__}\) uses statistics of a whole batch"):
        check_model(nn.Sequential(nn.Linear(3, 4), layer))
    check_model(nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GroupNorm(2, 4), nn.InstanceNorm1d(4)))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method": {"name": "edad"}}, "method.name edad"),
        ({"method": {"name": "dsgd", "local_steps": 2}}, "method.local_steps 2"),
        (
            {"training": {"optimizer": {"name": "adam", "lr": 0.01, "second_moment": "factored"}}},
            'training.optimizer.second_moment "factored"',
        ),
        ({"evaluation": {"name": "k-fold", "folds": 3, "references": ["local"]}}, 'evaluation.references "local"'),
    ],
)
def test_what_cannot_be_done_with_rows_of_weights_is_refused_by_its_field(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=rf'^parallel: got "fsdp", but {reason}'):
        check_divided(run_spec(**changes), site_config(1, parallel="fsdp"), has_own_gpu=False)
    check_divided(run_spec(method={"name": "rank-dad", "rank": 2}), site_config(1), has_own_gpu=False)
    with pytest.raises(SpecError, match=r"^parallel: .* device cuda:0 "):
        check_divided(run_spec(), site_config(1, device="cuda:0"), has_own_gpu=False)


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ({"name": "mlp", "hidden": [16, 6]}, 3),
        ({"name": "mlp", "hidden": []}, 2),
        ({"name": "gru", "hidden": [4]}, 2),
        ({"name": "vit", "patch": 1, "width": 9, "depth": 1, "heads": 3}, 2),
    ],
)
def test_a_model_that_tensor_parallel_cannot_divide_is_refused(model: dict[str, Any], size: int) -> None:
    spec = run_spec(model=model, data={"shape": [6, 2]})
    with pytest.raises(SpecError) as refused:
        pairs(spec, build_model(spec), size)
    assert (refused.value.code, refused.value.field) == ("model-cannot-be-divided", "parallel.tensor")
    assert pairs(run_spec(), build_model(run_spec()), 4) == [("1", "3", 1)]


@pytest.mark.parametrize(
    "model",
    [
        {"name": "mlp", "hidden": [16, 6]},
        {"name": "vit", "patch": 1, "width": 8, "depth": 1, "heads": 2},
        {"name": "vit", "patch": 1, "width": 8, "depth": 2, "heads": 2, "dropout": 0.1},
    ],
)
def test_a_model_without_so_many_stages_is_refused(model: dict[str, Any]) -> None:
    with pytest.raises(SpecError) as refused:
        check_stages(run_spec(model=model, data={"shape": [6, 2]}), model.get("depth", 0), 2)
    assert (refused.value.code, refused.value.field) == ("model-cannot-be-divided", "parallel.pipeline")
    mesh = {"shard": 2, "pipeline": 2}
    with pytest.raises(SpecError, match='"pipeline"'):
        check_divided(run_spec(), site_config(1, parallel=mesh), has_own_gpu=False)


@pytest.mark.parametrize("ranks", [1, 2, 8])
def test_a_mesh_of_another_number_of_ranks_is_refused(ranks: int) -> None:
    config = site_config(1, parallel={"data": 2, "tensor": 2})
    assert config.mesh(4).batches == 2
    with pytest.raises(SpecError) as refused:
        config.mesh(ranks)
    assert (refused.value.code, refused.value.field) == ("parallel-does-not-fit", "parallel")


def torchrun(rank: int, port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "RANK": str(rank)}


@pytest.mark.parametrize(
    "variable",
    [pytest.param({}, marks=pytest.mark.slow), {"MASTER_PORT": "x"}, {"WORLD_SIZE": "x"}, {"MASTER_ADDR": ""}],
)
def test_a_rank_that_finds_no_other_says_what_to_look_at(
    variable: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (torchrun(1, free_port()) | variable).items():
        monkeypatch.setenv(name, value)
    begun = time.monotonic()
    with pytest.raises(
        UserError, match=r"^torchrun's processes cannot reach each other \(.*is --master-addr the machine"
    ):
        Ranks(joining=timedelta(seconds=2))
    assert time.monotonic() - begun < 30


def at_one(function: Callable[[int, Any], None], variables: dict[str, str], answers: Any) -> None:
    os.environ.update(variables)
    function(int(variables["RANK"]), answers)


def answer_of(function: Callable[[int, Any], None]) -> Any:
    """Return what the first of two ranks to say something says; as with torchrun, the store outlives them."""
    port = free_port()
    store = TCPStore("127.0.0.1", port, None, is_master=True, wait_for_workers=False)
    agent = {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
    answers = CONTEXT.Queue()
    ranks = [
        CONTEXT.Process(target=at_one, args=(function, torchrun(rank, port) | agent, answers)) for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    try:
        return answers.get(timeout=90)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
        del store


def stands_still(rank: int, answers: Any) -> None:
    ranks = Ranks(in_step=timedelta(seconds=2))
    ranks.connect()
    if rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        with ranks.together():
            all_gather_bytes(b"part")
    except LostRankError as error:
        answers.put(str(error))


def cannot_go_on(rank: int, answers: Any) -> None:
    ranks = Ranks()
    held = torch.distributed.group.WORLD  # as what is sharded does
    if rank:
        with suppress(SystemExit), ranks:
            raise UserError("has no data", code="no-data")
        return
    begun = time.monotonic()
    try:
        with ranks, ranks.together():
            all_gather_bytes(b"part")
    except RankError as error:
        answers.put((str(error), time.monotonic() - begun, held is not None))


@pytest.mark.slow
def test_a_rank_that_cannot_go_on_is_named_at_once_by_ranks_that_hold_the_group() -> None:
    said, seconds, _ = answer_of(cannot_go_on)
    assert said == "rank 1: has no data"
    assert seconds < 8, "not only when its process has ended"


def waits_elsewhere(rank: int, answers: Any) -> None:
    ranks = Ranks()
    if rank:
        with suppress(SystemExit), ranks:
            raise UserError("has no data", code="no-data", field="data")
        return
    with suppress(RankError), ranks:
        while True:
            try:
                ranks.look()
            except RankError as error:
                answers.put((str(error), error.code))
                raise


@pytest.mark.slow
def test_a_rank_that_cannot_go_on_is_heard_by_rank_0_while_that_waits_for_other_sites() -> None:
    assert answer_of(waits_elsewhere) == ("rank 1: has no data", "no-data")


def stops(rank: int, answers: Any, *, at_once: bool = False, dies: bool = False) -> None:
    """Rank 0 is stopped, while rank 1 waits for it, computes for long, or has died."""
    ranks = Ranks()
    try:
        with ranks, ShutdownSignals(ranks.look, ranks.leave) if not rank else nullcontext():
            all_gather_bytes(b"")
            if rank:
                if dies:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(0.0 if at_once else 6.0)
                all_gather_bytes(b"")
            time.sleep(0.5)
            for number in (signal.SIGTERM, signal.SIGINT)[: 1 + at_once]:
                os.kill(os.getpid(), number)  # the second ends the process
            time.sleep(0.01)
            raise ShutdownError(signal.SIGTERM)
    except BaseException as error:
        answers.put((rank, type(error)))
        time.sleep(1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "expected"),
    [({}, (0, ShutdownError)), ({"at_once": True}, (1, SystemExit)), ({"dies": True}, (0, LostRankError))],
)
def test_a_rank_that_stops_is_not_lost_and_does_not_call_others_so(how: dict[str, bool], expected: object) -> None:
    assert answer_of(partial(stops, **how)) == expected


ENDS = """
import os
import torch
from rankdad.common.lowrank.factors import Factor
from rankdad.local.ranks.group import Ranks
with Ranks():
    import torch.distributed.fsdp  # as torch does where a model is made
    torch.distributed.all_reduce(torch.ones(1))
print([open(f"/proc/self/task/{one}/comm").read() for one in os.listdir("/proc/self/task")])
"""


@pytest.mark.exhaustive
def test_no_thread_of_a_group_outlives_it() -> None:
    """Now and then one of them aborted a rank that had ended well. What forks has imported more, and shows nothing."""
    variables = os.environ | torchrun(0, free_port()) | {"WORLD_SIZE": "1"}
    done = subprocess.run([sys.executable, "-c", ENDS], env=variables, capture_output=True, text=True, check=True)
    assert "python" in done.stdout
    assert "gloo" not in done.stdout


@pytest.mark.slow
def test_a_rank_that_stands_still_in_a_step_is_named_while_its_connections_are_open() -> None:
    assert answer_of(stands_still).startswith("rank 1 of 0 to 1 no longer answers: killed, stopped")


@pytest.mark.parametrize(
    ("parallel", "field"),
    [
        ("data", ""),
        ("fsdp", ""),
        ({"tensor": 2}, ""),
        ({"tensor": 3}, "parallel.tensor"),
        ({"pipeline": 2}, "parallel.pipeline"),
    ],
)
def test_a_check_says_what_a_start_would(parallel: object, field: str) -> None:
    """A site of three ranks for a network of 16 units passed the check."""
    spec = run_spec(method={"name": "rank-dad", "rank": 2})
    config, model = site_config(1, parallel=parallel), build_model(spec)
    if not field:
        check_mesh(spec, config, model)
        return
    with pytest.raises(SpecError) as refused:
        check_mesh(spec, config, model)
    assert (refused.value.code, refused.value.field) == ("model-cannot-be-divided", field)
