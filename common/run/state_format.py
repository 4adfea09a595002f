"""The format of a process's state: tensors by name and one JSON object, without names of code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from rankdad.common.errors import UserError, one_line, visible
from rankdad.common.lowrank.factors import Factor
from rankdad.common.lowrank.reduction.feedback import Residuals
from rankdad.common.protocol.plan import Plan
from rankdad.common.run.replica import copies
from rankdad.common.run.snapshot import Progress, under
from rankdad.common.run.state import RunState

SHARED = ("replica/", "best/", "basis/", "total/")  # tensors that are equal at all processes
DIVIDED = ("replica/", "best/")  # those that a divided replica has parts of
FORMAT = 4  # of the document


class Loaded(NamedTuple):
    """A checkpoint's contents besides the run's state: JSON, residuals, and moments of a site's own optimizer.

    For each entry of `sent` in the JSON, the change of the residuals by the late contribution.
    """

    document: Mapping[str, Any]
    residuals: Residuals
    moments: Mapping[str, Tensor]
    changes: tuple[Residuals, ...] = ()


class StateFormat:
    """Encode and decode a process's state.

    Args:
        plan: of the run.
        owner: of the state.
        data_sha256: digest of the owner's data; None to not compare it.
    """

    def __init__(self, plan: Plan, owner: str, data_sha256: str | None = None) -> None:
        self._owner, self._data_sha256 = {"format": FORMAT, "plan_sha256": plan.sha256(), "owner": owner}, data_sha256

    @property
    def head(self) -> dict[str, Any]:
        """Return the fields that `check` compares."""
        return {**self._owner, **({} if self._data_sha256 is None else {"data_sha256": self._data_sha256})}

    def of(
        self,
        state: RunState,
        residuals: Residuals,
        document: Mapping[str, Any] | None = None,
        moments: Mapping[str, Tensor] | None = None,
        changes: Sequence[Residuals] = (),
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the tensors and metadata of a safetensors file; see `Checkpoints.save` for the arguments."""
        own = copies({f"moment/{name}": value for name, value in (moments or {}).items()})
        for number, late in enumerate(changes):
            own |= {f"late-{number}/{name}": value for name, value in _tensors(late).items()}
        tensors = state.tensors() | _tensors(residuals) | own
        whole = {**(document or {}), **self.head, "progress": state.progress.model_dump()}
        whole["run"] = state.spec.model_dump(mode="json")
        return tensors, {"": json.dumps(whole)}

    def check(self, document: Mapping[str, Any], place: str, remedy: str) -> None:
        """Check that a document is of this version, run, owner and data.

        Args:
            document: JSON.
            place: of the document, for errors.
            remedy: for another owner's document.

        Raises:
            UserError: it is not.
        """
        owner = {name: document.get(name) for name in self._owner}
        if owner["format"] != FORMAT:
            raise UserError(
                f"{place}: is a checkpoint of format {visible(str(owner['format']), 20)}, and this version of rankdad "
                f"has {FORMAT}: finish the run with its own version",
                code="checkpoint-of-earlier-version",
            )
        if owner != self._owner:
            raise UserError(
                f"{place}: is a checkpoint of another run or owner; {remedy}", code="checkpoint-of-another-run"
            )
        if self._data_sha256 not in (None, document.get("data_sha256")):
            raise UserError(
                f"data: samples, labels or splits differ from those of {place}: restore the data that it began with",
                code="data-changed",
                field="data",
            )

    def restore(
        self, state: RunState, document: Mapping[str, Any], tensors: Mapping[str, Tensor], place: str
    ) -> Loaded:
        """Restore a process's state in place; return its further contents.

        Raises:
            UserError: it does not fit this run.
        """
        try:
            state.load(Progress.model_validate_json(json.dumps(document["progress"])), dict(tensors))
        except (ValueError, KeyError, RuntimeError, RecursionError) as error:
            raise UserError(
                f"{place}: is no checkpoint of this run: {one_line(error)}", code="checkpoint-of-another-run"
            ) from None
        device = state.replica.device
        own = {name: value.to(device) for name, value in tensors.items() if not name.startswith(SHARED)}
        changes = tuple(_residuals(under(f"late-{number}", own)) for number in range(len(document.get("sent", ()))))
        return Loaded(document, _residuals(own), under("moment", own), changes)


def _tensors(residuals: Residuals) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, residual in residuals.items():
        if isinstance(residual, Factor):
            tensors |= {f"delta/{name}": residual.delta, f"activation/{name}": residual.activation}
        else:
            tensors[f"residual/{name}"] = residual
    return copies(tensors)


def _residuals(tensors: Mapping[str, Tensor]) -> Residuals:
    deltas, activations = under("delta", tensors), under("activation", tensors)
    return {name: Factor(deltas[name], activations[name]) for name in deltas} | under("residual", tensors)
