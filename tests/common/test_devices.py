"""One name for a device, wherever it is given; nothing depends silently on whether a GPU is there."""

from __future__ import annotations

import logging

import pytest
import torch

from rankdad.common.devices import device_here
from rankdad.common.errors import UserError


@pytest.mark.parametrize(
    ("name", "gpus", "local_rank", "device"),
    [
        ("cpu", 2, None, "cpu"),
        ("cuda:1", 2, "0", "cuda:1"),
        ("cuda", 2, None, "cuda:0"),
        ("cuda", 2, "1", "cuda:1"),
        ("cuda", 2, "5", "cuda:1"),  # more ranks than GPUs
        ("auto", 2, "1", "cuda:1"),
        ("auto", 0, "1", "cpu"),
    ],
)
def test_a_name_stands_for_one_device(
    name: str, gpus: int, local_rank: str | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert device_here(name) == device


@pytest.mark.parametrize(("gpus", "chosen"), [(0, "cpu, since torch finds no GPU here"), (1, "cuda:0")])
def test_auto_says_what_it_has_chosen(
    gpus: int, chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with caplog.at_level(logging.INFO, logger="rankdad"):
        device_here("auto")
    assert caplog.messages == [f"device auto: computing on {chosen}"]


@pytest.mark.parametrize(
    ("name", "gpus", "sentence"),
    [
        ("cuda", 0, "--device: got cuda, but this machine has no GPU: expected auto or cpu"),
        ("cuda:3", 0, "--device: got cuda:3, but this machine has no GPU: expected auto or cpu"),
        ("cuda:3", 1, "--device: got cuda:3, but this machine has 1 GPU: expected cuda:0, auto or cpu"),
        ("cuda:3", 2, "--device: got cuda:3, but this machine has 2 GPUs: expected cuda:0 to cuda:1, auto or cpu"),
        ("gpu", 2, "--device: got 'gpu', expected cpu, cuda:N, cuda or auto"),
    ],
)
def test_a_device_that_is_not_there_is_named(
    name: str, gpus: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(UserError) as raised:
        device_here(name, "--device")
    assert str(raised.value) == sentence
