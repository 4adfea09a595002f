"""What each run of a server begins with: its model and its aggregator."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankdad.common.devices import CPU, device_here, limit_threads
from rankdad.common.files import cannot_write
from rankdad.common.memory import check_memory
from rankdad.common.run.replica import Replica
from rankdad.common.spec import RunSpec
from rankdad.remote.aggregator import Aggregator
from rankdad.remote.persistence import LedgerOptions
from rankdad.remote.run_reader import FILE

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """Options for all runs of a server.

    Args:
        allowed_factories: permitted model factories.
        weights: folder of the pretrained weights that specs may name.
        ledger: options of the ledger; None for runs that cannot resume.
        device: device of reductions and replicas.
    """

    allowed_factories: Collection[str] = ()
    weights: Path | None = None
    ledger: LedgerOptions | None = LedgerOptions()  # noqa: RUF009
    device: str = CPU


def replica_of(spec: RunSpec, options: Options) -> Replica:
    """Build a run's model.

    Raises:
        UserError: the run does not fit this machine.
    """
    limit_threads(spec.training.threads)
    check_memory(spec)
    return Replica(spec, options.allowed_factories, device_here(options.device, "--device"), options.weights)


def begin(spec: RunSpec, replica: Replica, directory: Path, ledger: LedgerOptions | None, **named: Any) -> Aggregator:
    """Create or resume a run's aggregator; see there for the arguments.

    Raises:
        UserError: the run's directory cannot be written, or is damaged.
    """
    resumes = ledger is not None and (directory / FILE).exists()
    try:
        aggregator = Aggregator(spec, replica, directory, time.perf_counter, ledger=ledger, **named)
    except OSError as error:
        raise cannot_write(directory, error) from None
    if resumes:
        try:
            aggregator.resume()
        except BaseException:
            aggregator.abandon()
            raise
    for warning in aggregator.plan.warnings:
        _log.warning(warning)
    return aggregator
