"""Run jobs in parallel, or one after the other where time is measured, and keep every result."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from benchmarks.paper.jobs import Job
from rankdad.common.errors import RankdadError, UserError

Done = tuple[Job, dict[str, Any], float]  # a job, its result, and the seconds that it took


def do(jobs: Sequence[Job], output: Path, data: Path, processes: int, console: Console) -> None:
    """Do the jobs that have no result yet, and keep each result at once.

    Args:
        jobs: in the order in which they are begun; those that run alone wait for all others.
        output: folder of results.
        data: folder of the data sets' files.
        processes: how many jobs run at a time.
        console: where progress is shown.

    Raises:
        RankdadError: of a job that could not be done.
    """
    distinct = {job.place: job for job in jobs}.values()
    left = [job for job in distinct if job.result(output, data) is None]
    if len(left) < len(distinct):
        console.print(f"{len(distinct) - len(left)} of {len(distinct)} results are there from before")
    together, alone = ([job for job in left if job.alone == by_itself] for by_itself in (False, True))
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("jobs"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(left))
        done = chain(_together(together, data, processes), (_perform(job, data) for job in alone))
        for number, (job, result, seconds) in enumerate(done, start=1):
            job.keep(output, data, result)
            progress.advance(task)
            console.print(f"{number}/{len(left)} {job.words}: {seconds:.0f} s", highlight=False, soft_wrap=True)


def _together(jobs: Sequence[Job], data: Path, processes: int) -> Iterator[Done]:
    """Do jobs in processes of their own, in the order in which they end."""
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(jobs)), context, initializer=_begin)
    try:
        for future in as_completed([pool.submit(_perform, job, data) for job in jobs]):
            yield future.result()
    except BrokenProcessPool:
        raise RankdadError(
            "a process was killed, perhaps for want of memory: the same command goes on, --jobs 1 needs less",
            code="process-killed",
        ) from None
    finally:  # after Ctrl-C or an error nobody waits for the others
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()


def _begin() -> None:
    """Let Ctrl-C end a process silently."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _perform(job: Job, data: Path) -> Done:
    """Perform a job; an error names the job and can be sent between processes."""
    began = time.perf_counter()
    try:
        return job, job.perform(data), time.perf_counter() - began
    except RankdadError as error:
        kind = UserError if isinstance(error, UserError) else RankdadError
        raise kind(f"{job.words}: {error}", code=error.code, field=error.field) from None
