"""Damaged and hostile checkpoints of `LowRank.save`: one error at all ranks, soon."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rankdad.common.errors import RankdadError
from rankdad.distributed.low_rank import LowRank
from tests.distributed.nets import batches_of, loss_of, perceptron, place
from tests.ranks import run_ranks

Change = Callable[[dict[str, Any], bytearray], object]


def number(name: str, value: int) -> Change:
    return lambda head, body: struct.pack_into("<q", body, head[name]["data_offsets"][0], value)


def options(text: bytes) -> Change:
    def change(head: dict[str, Any], body: bytearray) -> None:
        begin, end = head["options"]["data_offsets"]
        body[begin:end] = text.ljust(end - begin)

    return change


def offset(name: str, value: int) -> Change:
    def change(head: dict[str, Any], body: bytearray) -> None:
        known = json.loads(head["__metadata__"]["DCP_SHARDING_INFO"])
        known[name]["saved_offsets"][0] = value
        head["__metadata__"]["DCP_SHARDING_INFO"] = json.dumps(known)

    return change


def nested(head: dict[str, Any], body: bytearray) -> None:
    head["__metadata__"]["DCP_SHARDING_INFO"] = "[" * 100_000


CHANGES: dict[str, tuple[Change, str]] = {
    "a step below 0": (number("step", -1), "checkpoint-malformed"),
    "a huge step": (number("step", 1 << 62), "checkpoint-malformed"),
    "no ranks": (number("ranks", 0), "checkpoint-malformed"),
    "options that are no JSON": (options(b"["), "checkpoint-malformed"),
    "options that are no text": (options(b"\xff"), "checkpoint-malformed"),
    "options that are a number": (options(b"5"), "checkpoint-malformed"),
    "options of a terabyte": (offset("options", 10**12), "checkpoint-malformed"),
    "too deep": (nested, "checkpoint-unreadable"),
}


def changed(file: Path, change: Change) -> None:
    content = file.read_bytes()
    size = 8 + struct.unpack("<Q", content[:8])[0]
    head, body = json.loads(content[8:size]), bytearray(content[size:])
    change(head, body)
    written = json.dumps(head).encode()
    file.write_bytes(struct.pack("<Q", len(written)) + written + body)


def loaded(folder: str) -> dict[str, str]:
    """Return the codes of errors at this rank; "" for none."""
    model, found = perceptron(), dict[str, str]()
    sync = LowRank(model, rank=2)
    sync.backward(loss_of(model, batches_of((8, 8), 0)[place()]), weight=8)
    sync.save(folder + "/good")
    sync.save(folder + "/other")
    if not place():
        shutil.copytree(folder + "/good", folder + "/mixed")
        shutil.copy(max(Path(folder, "other").iterdir()), folder + "/mixed")
        Path(folder, "dangling").symlink_to(Path(folder, "nowhere"))
    dist.barrier()
    found["of two saves"] = code_of(sync, Path(folder, "mixed"))
    for name, (change, _) in (CHANGES | {"": (lambda *_: None, ""), "pipe": (lambda *_: None, "")}).items():
        own = Path(folder, name or "same")
        if not place():
            shutil.copytree(folder + "/good", own)
            for file in own.iterdir():
                with contextlib.suppress(KeyError):  # of tensors in other files
                    changed(file, change)
            if name == "pipe":
                os.mkfifo(own / "another.safetensors")
        dist.barrier()
        found[name] = code_of(sync, own)
    for values in sync._state.residuals.values():
        for value in (values,) if isinstance(values, torch.Tensor) else (values.delta,):
            value.view(-1)[:1] = torch.nan if place() else 0
    sync.save(folder + "/nan")
    found["NaN at a rank"] = code_of(sync, Path(folder, "nan"))
    for name in ("good", "dangling"):
        try:
            sync.save(f"{folder}/{name}")
        except RankdadError as raised:
            found[f"saved to {name}"] = raised.code
    return found


def code_of(sync: LowRank, folder: Path) -> str:
    try:
        sync.load(folder)
    except RankdadError as raised:
        return raised.code
    return ""


@pytest.mark.slow
def test_damaged_checkpoints_are_one_error_at_all_ranks(tmp_path: Path) -> None:
    first, second = run_ranks(2, loaded, str(tmp_path))
    assert first == second
    codes = {name: code for name, (_, code) in CHANGES.items()}
    assert first == codes | {
        "": "",
        "pipe": "checkpoint-unreadable",
        "NaN at a rank": "not-finite",
        "of two saves": "checkpoint-incomplete",
        "saved to good": "output-exists",
        "saved to dangling": "cannot-write",
    }
