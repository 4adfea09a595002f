"""Bytes and rows of unequal length between the ranks of a process group (torch.distributed, gloo or nccl)."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # a later import would hold the group, whose threads abort an ending process
from torch import Tensor

from rankdad.common.errors import UserError, one_line

JOINING = timedelta(minutes=2)  # for all processes of torchrun to join


def not_joined(error: Exception) -> UserError:
    """Return the error for processes of torchrun that cannot reach each other."""
    return UserError(
        f"torchrun's processes cannot reach each other ({one_line(error)}): is --master-addr the machine of rank 0, "
        "is its port free there, and is torchrun started at all nodes? Name the network between the machines in "
        "GLOO_SOCKET_IFNAME, such as eth0, at each",
        code="torchrun-unreachable",
    )


def device_of(group: dist.ProcessGroup | None = None) -> torch.device:
    """Return the device of a group's collectives; nccl needs a GPU."""
    if "nccl" in dist.get_backend(group):
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def all_gather_equal(own: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return each rank's tensor, stacked in the order of ranks on this rank's device; shapes must be equal."""
    placed = own.to(device_of(group))
    gathered = placed.new_empty(dist.get_world_size(group), *placed.shape)
    if placed.numel():
        dist.all_gather(list(gathered), placed, group=group)
    return gathered.to(own.device)


def all_gather_rows(rows: Tensor, group: dist.ProcessGroup | None = None) -> list[Tensor]:
    """Return each rank's rows in the order of ranks; width and dtype must be equal.

    Args:
        rows: [n, …]; n may be 0 and differ between ranks.
        group: the process group; None for the default one.
    """
    lengths: list[int] = all_gather_equal(torch.tensor([len(rows)]), group).flatten().tolist()
    padded = rows.new_zeros((max(lengths), *rows.shape[1:]))
    padded[: len(rows)] = rows
    return [each[:length] for each, length in zip(all_gather_equal(padded, group), lengths, strict=True)]


def all_gather_bytes(message: bytes, group: dist.ProcessGroup | None = None) -> list[bytes]:
    """Return each rank's message, in the order of ranks."""
    return [as_bytes(part) for part in all_gather_rows(as_tensor(message), group)]


def broadcast_bytes(message: bytes, group: dist.ProcessGroup | None = None) -> bytes:
    """Return rank 0's message at all ranks of the group; other ranks' messages are ignored."""
    device = device_of(group)
    length = torch.tensor([len(message)], device=device)
    dist.broadcast(length, group=group, group_src=0)
    data = torch.empty(int(length), dtype=torch.uint8) if dist.get_rank(group) else as_tensor(message)
    data = data.to(device)
    if len(data):
        dist.broadcast(data, group=group, group_src=0)
    return as_bytes(data)


def send(data: Tensor, to: int, group: dist.ProcessGroup | None = None) -> None:
    """Send a uint8 tensor to a rank of the group; the receiver must know its length."""
    if len(data):
        dist.send(data.to(device_of(group)), group=group, group_dst=to)


def receive(length: int, source: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Receive a uint8 tensor of this length on the CPU from a rank of the group."""
    data = torch.empty(length, dtype=torch.uint8, device=device_of(group))
    if length:
        dist.recv(data, group=group, group_src=source)
    return data.cpu()


def as_tensor(message: bytes) -> Tensor:
    """Return bytes as a uint8 tensor on the CPU."""
    return torch.frombuffer(bytearray(message), dtype=torch.uint8) if message else torch.empty(0, dtype=torch.uint8)


def as_bytes(data: Tensor) -> bytes:
    """Return the bytes of a uint8 tensor."""
    return data.cpu().numpy().tobytes()


def send_bytes(message: bytes, rank: int, seconds: float) -> None:
    """Send a message to a rank of the default group (gloo), which calls `receive_bytes`.

    Args:
        message: of any length.
        rank: of the receiver.
        seconds: timeout.

    Raises:
        RuntimeError: its process has ended, or has not received the message in time.
    """
    length = torch.tensor([len(message)])
    parts = [length, as_tensor(message)] if message else [length]
    for part in parts:
        _wait(dist.isend(part, rank), seconds)


def receive_bytes(rank: int, seconds: float) -> bytes:
    """Return the message that a rank of the default group (gloo) sends.

    Args:
        rank: of the sender.
        seconds: timeout.

    Raises:
        RuntimeError: its process has ended, or has sent nothing in time.
    """
    length = torch.zeros(1, dtype=torch.int64)
    _wait(dist.irecv(length, rank), seconds)
    message = torch.empty(int(length), dtype=torch.uint8)
    if len(message):
        _wait(dist.irecv(message, rank), seconds)
    return as_bytes(message)


def _wait(work: dist.Work | None, seconds: float) -> None:
    assert work is not None
    work.wait(timedelta(seconds=seconds))
