"""Ranks of a process group for tests: real processes over gloo."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.multiprocessing.spawn import start_processes

from tests.ports import free_port
from tests.warm import CONTEXT

PATIENCE = timedelta(seconds=60)  # of the group: ranks start seconds apart on a machine that is busy


def _rank(
    rank: int, size: int, port: int, function: Callable[..., Any], arguments: tuple[Any, ...], answers: Any
) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, size, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    answers.put((rank, function(*arguments)))
    with contextlib.suppress(RuntimeError):  # a rank that a test has ended comes to no barrier
        dist.barrier()
    gc.collect()  # what holds the group would keep its threads, and one that lets go of a hook while Python ends aborts
    dist.destroy_process_group()


def run_ranks(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run a function of a module at every rank of a group, and return what each returns, in the order of ranks.

    A rank that ends by itself (`os._exit(0)`) returns None.
    """
    answers = CONTEXT.SimpleQueue()
    given = (size, free_port(), function, arguments, answers)
    processes = start_processes(_rank, given, size, join=False, start_method="forkserver")
    gathered, ended = {}, False
    while not ended:
        ended = processes.join(timeout=0.1)  # raises what a rank raised
        while not answers.empty():
            rank, answer = answers.get()
            gathered[rank] = answer
    return [gathered.get(rank) for rank in range(size)]
