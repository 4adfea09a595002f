"""Bytes and rows of unequal length between the ranks of a process group (torch.distributed, gloo or nccl)."""

from __future__ import annotations

from collections.abc import Sequence
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


def begin_all_to_all(
    parts: Sequence[Tensor], sizes: Sequence[int], group: dist.ProcessGroup | None = None
) -> tuple[dist.Work, Tensor]:
    """Start to send a part to each rank; return the work, and where it will put all received parts, in order.

    Args:
        parts: uint8 tensors, in the order of ranks.
        sizes: bytes to receive from each rank.
        group: the process group; None for the default one.
    """
    sent = torch.cat(list(parts)).to(device_of(group))
    received = sent.new_empty(sum(sizes))
    work = dist.all_to_all_single(received, sent, list(sizes), list(map(len, parts)), group=group, async_op=True)
    assert work is not None
    return work, received


def all_to_all(
    parts: Sequence[Tensor], group: dist.ProcessGroup | None = None, sizes: Sequence[int] | None = None
) -> list[Tensor]:
    """Send a part to each rank; return what each rank has sent. Arguments as for `begin_all_to_all`.

    Args:
        parts: to send.
        group: the process group.
        sizes: bytes to receive from each rank; None exchanges them first.
    """
    if sizes is None:
        lengths = [torch.tensor([len(part)]).view(torch.uint8) for part in parts]
        sizes = torch.cat(all_to_all(lengths, group, [torch.int64.itemsize] * len(parts))).view(torch.int64).tolist()
    work, received = begin_all_to_all(parts, sizes, group)
    work.wait()
    return list(received.to(parts[0].device).split(list(sizes)))


def all_gather_evenly(
    own: Tensor, sizes: Sequence[int] | None = None, group: dist.ProcessGroup | None = None
) -> list[Tensor]:
    """Return each rank's bytes, in the order of ranks. No rank sends more than its share, (S - 1) / S of all bytes.

    Up to the mean size, a rank sends its bytes to all others. It sends the rest once, in pieces, to ranks that have
    fewer bytes than the mean, and they forward it.

    Args:
        own: uint8 tensor.
        sizes: of all ranks' bytes; None exchanges them first.
        group: the process group; None for the default one.
    """
    rank, places = dist.get_rank(group), range(dist.get_world_size(group))
    if sizes is None:
        sizes = all_gather_equal(torch.tensor([len(own)]), group).flatten().tolist()
    most, pieces = forwarded(sizes)
    kept = [min(size, most) for size in sizes]
    lent = {(owner, helper): stop - start for owner, helper, start, stop in pieces}
    sent = [own[: kept[rank]].clone() for _ in places]
    for owner, helper, start, stop in pieces:
        if owner == rank:
            sent[helper] = torch.cat([sent[helper], own[start:stop]])
    sent[rank] = sent[rank][:0]
    received = all_to_all(sent, group, [kept[p] + lent.get((p, rank), 0) if p != rank else 0 for p in places])
    found = [[part[:size]] for part, size in zip(received, kept, strict=True)]
    if pieces:
        held = {p: received[p][kept[p] :] for p, helper in lent if helper == rank}
        sent = [torch.cat([own[:0], *(held[p] for p in held if p not in (to, rank))]) for to in places]
        sent[rank] = own[:0]
        passing = [
            [(owner, size) for (owner, helper), size in lent.items() if helper == p != rank and owner != rank]
            for p in places
        ]
        passed = all_to_all(sent, group, [sum(size for _, size in each) for each in passing])
        parts = {(owner, rank): part for owner, part in held.items()}
        for p, each in enumerate(passing):
            for (owner, _), part in zip(each, passed[p].split([size for _, size in each]), strict=True):
                parts[owner, p] = part
        for owner, helper in lent:
            if owner != rank:
                found[owner].append(parts[owner, helper])
    found[rank] = [own]
    return [torch.cat(each) for each in found]


def forwarded(sizes: Sequence[int]) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Return the bytes that a rank sends to all others itself, and the pieces of larger ones that others forward.

    Returns:
        The mean size, and for each piece its owner, the rank that forwards it, start and end.
    """
    most = -(-sum(sizes) // len(sizes))
    free = [(rank, most - size) for rank, size in enumerate(sizes) if size < most]
    pieces = []
    for owner, size in enumerate(sizes):
        start = most
        while start < size:
            helper, room = free.pop()
            stop = min(size, start + room)
            pieces.append((owner, helper, start, stop))
            if stop - start < room:
                free.append((helper, room - stop + start))
            start = stop
    return most, pieces


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
