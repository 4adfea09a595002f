"""Lines that a site prints while it trains: for each training, epoch and test."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from rankdad.common.protocol.messages import Body
from rankdad.common.rounds.step import Step
from rankdad.common.run.state import RunState
from rankdad.common.spec import RunSpec
from rankdad.common.spec.tasks import shown

MAX_METRICS = 2  # in a line


def following(
    spec: RunSpec, run: RunState, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[Body], None]:
    """Return a callback for updates that the run has applied; it prints what is new.

    Args:
        spec: the run.
        run: its state.
        say: prints a line.
        clock: returns seconds.
    """
    began, fold, epoch, announced, loss = clock(), run.fold, run.epoch, run.fold if run.epoch else -1, 0.0

    def look(body: Body) -> None:
        nonlocal fold, epoch, announced, loss
        if isinstance(body, Step):
            loss = body.loss
        if run.fold > fold:
            test = run.test
            tested = f"{_figures(test.values)}, {test.samples} samples" if test and test.samples else "no samples"
            if spec.place(fold)[1] is None:
                say(f"{spec.training_name(fold)} · test: {tested}".removeprefix(" · "))
        elif run.epoch > epoch:
            validation = run.validation
            measured = validation is not None and validation.samples > 0
            figures = _figures(validation.values) if validation and measured else f"training loss {loss:.4f}"
            best = " (best so far)" if measured and run.progress.best_epoch == run.epoch - 1 else ""
            where = f"epoch {run.epoch} of {run.epochs} · {clock() - began:.0f} s · step {run.steps}"
            say(f"{where} · {figures}{best}")
        if run.trains and run.fold > announced:
            announced = run.fold
            if spec.folds > 1:
                model, candidate = spec.place(run.fold)
                final = " with all samples" * (model >= spec.tested_folds and candidate is None)
                say(f"{spec.training_name(run.fold)}: trains{final}")
        fold, epoch = run.fold, run.epoch

    return look


def _figures(values: Mapping[str, float | None]) -> str:
    known = [f"{shown(name)} {value:.4f}" for name, value in values.items() if value is not None]
    return ", ".join(known[:MAX_METRICS])
