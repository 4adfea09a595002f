"""Codes are stable, and sentences change on purpose: all of them stand in one file."""

from __future__ import annotations

import re

import pytest

from rankdad.common.errors import CODE
from tests.errors.sentences import SNAPSHOT, code_of, raised, sentences


@pytest.mark.slow
def test_every_sentence_is_the_one_that_was_read() -> None:
    found, known = set(sentences().splitlines()), set(SNAPSHOT.read_text(encoding="utf-8").splitlines())
    assert found == known, "if it is meant: python -m tests.errors.sentences"


@pytest.mark.slow
def test_codes_are_words_with_hyphens() -> None:
    codes = {code_of(call) for _, call, _ in raised()} - {""}
    assert len(codes) > 100
    assert all(re.match(CODE, code) for code in codes)
