"""Checks a run against the lists of a site's policy: files, columns, groups, weights and vocabularies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from rankdad.common.errors import PolicyError
from rankdad.common.policy import Policy
from rankdad.common.refusals import CHOSEN_WEIGHTS, NAMED_TOKENS, VISITS, refusal
from rankdad.common.spec import RunSpec
from rankdad.common.spec.asked import not_listed
from rankdad.common.spec.patterns import escaped, literal
from rankdad.common.spec.text import BYTES, TextData

MAX_NAMES = 20  # of files or columns in a sentence


def check_lists(policy: Policy, spec: RunSpec) -> None:
    """Check that the policy lists what a run names.

    Raises:
        PolicyError: names the field of the spec.
    """
    _check_listed(policy, "files", spec.files, "file-not-allowed")
    columns = {field: tuple(map(escaped, names)) for field, names in spec.columns.items()}
    _check_listed(policy, "columns", columns, "column-not-allowed")
    _check_group(policy, spec)
    _check_pretrained(policy, spec)
    _check_vocabulary(policy, spec)


def _check_listed(
    policy: Policy, line: Literal["files", "columns"], asked: Mapping[str, Sequence[str]], code: str
) -> None:
    listed = getattr(policy, line)
    if listed is None:
        return
    others = not_listed(listed, asked)
    if others:
        told = ", ".join(map(literal, list(others)[:MAX_NAMES]))
        told += f" and {len(others) - MAX_NAMES:,} more" * (len(others) > MAX_NAMES)
        raise PolicyError(
            next(iter(others.values())),
            f"the run reads {told}, which this site's policy does not list ({line})",
            change={line: [*listed, *others]},
            code=code,
            lets_out=f"results about these {line}",
        )


def _check_group(policy: Policy, spec: RunSpec) -> None:
    group = getattr(spec.data, "group", None)
    if policy.group is not None and group != policy.group:
        asks = f"counts {f'rows with the same {group}' if group else 'every row'} as one person"
        change: dict[str, object] = {"group": group}
        raise refusal("data.group", asks, f"only {policy.group} (group)", change, VISITS, code="group-differs")


def _check_pretrained(policy: Policy, spec: RunSpec) -> None:
    begun = spec.model.pretrained
    if begun is None or policy.pretrained is None or begun.sha256 in policy.pretrained:
        return
    asks = f"starts from the weights in {begun.file} with the sha256 {begun.sha256}"
    allows = f"{'others' if policy.pretrained else 'none'} (pretrained)"
    change: dict[str, object] = {"pretrained": [*policy.pretrained, begun.sha256]}
    raise refusal("model.pretrained.sha256", asks, allows, change, CHOSEN_WEIGHTS, code="weights-not-listed")


def _check_vocabulary(policy: Policy, spec: RunSpec) -> None:
    data, tokens = spec.data, spec.data.tokens or 0
    own: str | int = tokens
    field, whose = "data.tokens", ""
    if isinstance(data, TextData) and data.tokenizer is not None:
        own, field = data.tokenizer.sha256, "data.tokenizer.sha256"
        whose = f" ({data.tokenizer.file})"
    elif tokens <= BYTES:  # a tokenizer of few tokens may have a surname among them
        return
    if policy.vocabularies is None or own in policy.vocabularies:
        return
    asks = f"has samples of {tokens:,} different tokens{whose}"
    allows = f"{'others' if policy.vocabularies else 'bytes alone'} (vocabularies)"
    change: dict[str, object] = {"vocabularies": [*policy.vocabularies, own]}
    raise refusal(field, asks, allows, change, NAMED_TOKENS, code="vocabulary-not-listed", owner="a text's bytes")
