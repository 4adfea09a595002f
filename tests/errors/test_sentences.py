"""Codes are stable, and sentences change on purpose: all of them stand in one file."""

from __future__ import annotations

import re

import pytest

from rankdad.common.errors import CODE
from tests.errors.sentences import BY_FIELD, SNAPSHOT, raised, sentences


@pytest.mark.slow
def test_every_sentence_is_the_one_that_was_read() -> None:
    found, known = set(sentences().splitlines()), set(SNAPSHOT.read_text(encoding="utf-8").splitlines())
    assert found == known, "if it is meant: python -m tests.errors.sentences"


def test_every_code_is_on_the_page_of_errors_with_a_sentence() -> None:
    known = [line.partition("\t") for line in SNAPSHOT.read_text(encoding="utf-8").splitlines()]
    assert [code for code, _, sentence in known if not sentence] == []
    assert {code for code, *_ in known} >= {"policy-refuses", "queue-locked", "rank-lost", "request-malformed"}


@pytest.mark.slow
def test_codes_are_words_with_hyphens() -> None:
    codes = {code for code, _ in raised()} - {BY_FIELD}
    assert len(codes) > 400
    assert [code for code in codes if not re.match(CODE, code)] == []
