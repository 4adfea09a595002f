"""What an aggregator's children say of themselves, be they sites or regions of sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from rankdad.common.protocol.messages import Body, Goodbye, Hello, Message, RegionGoodbye, RegionHello

B = TypeVar("B", bound=Body)


def introduced(children: Sequence[str], messages: Sequence[Message]) -> RegionHello:
    """Return what sites and regions say of themselves, as one hello."""
    hellos = [_as_region(child, message.body) for child, message in zip(children, messages, strict=True)]
    warnings: dict[str, list[str]] = {}
    for hello in hellos:
        for kind, sites in hello.warnings.items():
            warnings.setdefault(kind, []).extend(sites)
    samples = {site: counts for hello in hellos for site, counts in hello.samples.items()}
    dropped = {site: count for hello in hellos for site, count in hello.dropped.items()}
    together = {"samples": samples, "dropped": dropped, "warnings": warnings, "retain": all(h.retain for h in hellos)}
    together["functions"] = {site: own for hello in hellos for site, own in hello.functions.items()}
    together["alike"] = {site: folds for hello in hellos for site, folds in hello.alike.items()}
    return RegionHello.model_validate({**dict(hellos[0]), **together})


def _as_region(child: str, hello: Body) -> RegionHello:
    if isinstance(hello, RegionHello):
        return hello
    assert isinstance(hello, Hello)
    alone = {
        "samples": {child: hello.samples},
        "dropped": {child: hello.dropped} if hello.dropped else {},
        "warnings": {kind: [child] for kind in hello.warnings},
        "alike": {child: hello.alike} if hello.alike else {},
        "functions": {child: hello.functions} if hello.functions else {},
    }
    return RegionHello.model_validate({name: value for name, value in hello if name != "log"} | alone)


def ended(children: Sequence[str], messages: Sequence[Message]) -> tuple[dict[str, str], list[Tensor]]:
    """Return the digests of all sites and regions that say goodbye, and each child's sketch."""
    digests: dict[str, str] = {}
    sketches: list[Tensor] = []
    for child, message in zip(children, messages, strict=True):
        assert isinstance(message.body, Goodbye | RegionGoodbye)
        sketches.append(message.body.sketch)
        digests |= _digests(child, message.body)
    return digests, sketches


def _digests(child: str, goodbye: Goodbye | RegionGoodbye) -> dict[str, str]:
    return {child: goodbye.weights_sha256} if isinstance(goodbye, Goodbye) else goodbye.weights_sha256


def bodies(messages: Sequence[Message], kind: type[B]) -> list[B]:
    """Return the bodies of messages that are all of one kind."""
    found: list[B] = [message.body for message in messages if isinstance(message.body, kind)]
    assert len(found) == len(messages), "the barrier lets one kind into a round"
    return found
