"""A site's start from its checkpoints, and the folder of its results."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rankdad.common.errors import UserError
from rankdad.common.files import cannot_write
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.policy import Policy
from rankdad.common.policy_checks import check_snapshot
from rankdad.common.privacy.standing import Flows, Place
from rankdad.common.run.checkpoints import Checkpoints, Found, take_over
from rankdad.common.run.state import RunState
from rankdad.common.run.state_format import Loaded
from rankdad.common.staleness import Sent
from rankdad.local.ranks.alone import Alone
from rankdad.local.training import TrainingState

SNAPSHOT = b"snapshot\n"  # prefix of the aggregator's checkpoint; the site's own has its file's name
RUN_ID_FILE = "run-id"  # in an output folder: the run with its results there
_log = logging.getLogger(__name__)


def run_id(offered: Mapping[str, object]) -> str:
    """Return the aggregator's identity of the run, which names a folder here.

    Raises:
        UserError: it does not consist of 16 hexadecimal digits, and so could lead out of the folder.
    """
    number = offered.get("id")
    if not isinstance(number, str) or not re.fullmatch("[0-9a-f]{16}", number):
        raise UserError(
            f"the aggregator calls its run {str(number)[:40]!r}, expected 16 hexadecimal digits",
            code="id-malformed",
            field="id",
        )
    return number


def checkpoints_folder(output: Path, offered: Mapping[str, object]) -> Path:
    """Return the folder of a run's checkpoints, given the run's document from the aggregator."""
    return output / "checkpoints" / run_id(offered)


def results_folder(output: Path, name: str, run: str) -> Path:
    """Return the folder of a run's results: `output` itself, or a folder in it if another run's results are there.

    Args:
        output: of the site.
        name: of the run.
        run: its number.

    Raises:
        UserError: the disk is full or broken.
    """
    owner, separate = output / RUN_ID_FILE, output / f"{name}-{run}"
    try:
        if owner.exists() and owner.read_bytes() == run.encode():
            return output
        if separate.exists() or any((output / results).exists() for results in ("model", "predictions")):
            separate.mkdir(exist_ok=True)
            return separate
        owner.write_bytes(run.encode())
    except OSError as error:
        raise cannot_write(output, error, "output") from None
    return output


class Saves(Protocol):
    """A writer of checkpoints, such as `Checkpoints`."""

    def save(
        self,
        state: RunState,
        residuals: Residuals,
        document: Mapping[str, Any],
        moments: Mapping[str, Tensor],
        changes: Sequence[Residuals],
    ) -> None:
        """Write it; see `Checkpoints.save`."""


def save_state(checkpoints: Saves, state: TrainingState) -> None:
    """Write a site's checkpoint.

    Raises:
        UserError: the disk is full or broken.
    """
    document: dict[str, object] = {"follows": state.follows, "order": (state.order[0], dict(state.order[1]))}
    if state.sent:
        document["sent"] = [(late.step, late.weight, late.share) for late in state.sent]
    if state.places:
        document["places"] = [
            (place.sketch.tolist(), place.steps, _listed(place.flows), place.first, dict(place.drawn))
            for place in state.places
        ]
    checkpoints.save(state.run, state.residuals, document, state.moments, [late.change for late in state.sent])


def loaded_state(site: str, run_state: RunState, loaded: Loaded) -> TrainingState:
    """Return the state that `save_state` has written.

    Args:
        site: its name.
        run_state: from the checkpoint.
        loaded: the rest of the checkpoint.
    """
    sent = zip(loaded.document.get("sent", ()), loaded.changes, strict=True)
    late = tuple(Sent(step, weight, share, change) for (step, weight, share), change in sent)
    follows = loaded.document.get("follows") is True
    places = tuple(
        Place(_numbers(sketch), steps, _flows(*flows) if flows else None, first, drawn)
        for sketch, steps, flows, first, drawn in loaded.document.get("places", ())
    )
    epoch, order = loaded.document.get("order", (-1, {}))
    return TrainingState(site, run_state, loaded.residuals, loaded.moments, follows, late, places, (epoch, order))


def _listed(flows: Flows | None) -> list[list[Any]]:
    return [] if flows is None else [one.tolist() for one in (flows.ids, flows.kinds, flows.values)]


def _flows(ids: list[int], kinds: list[list[int]], values: list[list[float]]) -> Flows:
    return Flows(torch.tensor(ids), torch.tensor(kinds), torch.tensor(values))


def _numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def starting_state(
    site: str,
    offered: Mapping[str, object],
    ask_for_snapshot: Callable[[], bytes | None],
    run_state: RunState,
    checkpoints: Checkpoints,
    policy: Policy,
    notice: Callable[[str], None],
    ranks: Alone | None = None,
) -> TrainingState:
    """Return the state that a site starts from: its last checkpoint, else the aggregator's, else the initial one.

    Args:
        site: its name.
        offered: the run's document from the aggregator.
        ask_for_snapshot: returns the aggregator's checkpoint; None if it has none.
        run_state: at the run's beginning; changed in place.
        checkpoints: of the site.
        policy: of the site.
        notice: called if the site takes over the aggregator's weights.
        ranks: of the site, which start from the same by `shared_state`; by default the site has one process.

    Raises:
        PolicyError: only the aggregator's checkpoint is left, and the policy takes over no weights.
        UserError: the checkpoint is not this site's, or was made with other data.
    """
    ranks = ranks or Alone()
    found, oldest = checkpoints.find(), offered.get("oldest", 0)
    if found is None and checkpoints.damaged and oldest == 0:
        _log.warning("has no complete checkpoint; starts from the beginning, and repeats its contributions")
        ranks.share()
        return TrainingState(site, run_state)
    is_covered = found is not None and isinstance(oldest, int) and found.round >= oldest
    snapshot = None if is_covered else ask_for_snapshot()
    if snapshot is None:
        ranks.share(checkpoints.packed())
        if found is None:
            return TrainingState(site, run_state)
        state = _restored(site, run_state, checkpoints, found)
        _log.info("continues from its checkpoint of step %d, round %d", run_state.steps, run_state.round)
        return state
    check_snapshot(policy, has_checkpoint=found is not None)
    take_over(run_state, snapshot)
    why = "has lost its checkpoints" if found is None else "was away for longer than the ledger covers"
    notice(
        f"{site}: {why}; continues from the aggregator's checkpoint of step {run_state.steps}, without residuals: it "
        "takes over weights that it cannot compare with its own"
    )
    ranks.share(SNAPSHOT + snapshot)
    with ranks.together():
        checkpoints.save(run_state, {}, {"follows": True})
    return TrainingState(site, run_state, follows=True)


def shared_state(site: str, run_state: RunState, checkpoints: Checkpoints, shared: bytes | None) -> TrainingState:
    """Return rank 0's starting state, at another rank of the site.

    Args:
        site: its name.
        run_state: at the run's beginning; changed in place.
        checkpoints: of the site.
        shared: rank 0's checkpoint; None for the beginning.
    """
    if shared is None:
        return TrainingState(site, run_state)
    if shared.startswith(SNAPSHOT):
        take_over(run_state, shared.removeprefix(SNAPSHOT))
        checkpoints.save(run_state, {}, {"follows": True})
        return TrainingState(site, run_state, follows=True)
    return _restored(site, run_state, checkpoints, checkpoints.receive(shared))


def _restored(site: str, run_state: RunState, checkpoints: Checkpoints, found: Found) -> TrainingState:
    return loaded_state(site, run_state, checkpoints.restore(run_state, found))
