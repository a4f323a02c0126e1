"""Text that only shows, and one line an event."""

from __future__ import annotations

import io
import logging

import hypothesis.strategies as st
import pytest
from hypothesis import given

from jurat.platform.logs import configure, printable


@pytest.mark.parametrize(
    ("given_", "shown"),
    [
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b]0;x\x07\r", "\\x1b]0;x\\x07\\r"),
        ("\x9b31m\u202eabc\u200b", "\\x9b31m\\u202eabc\\u200b"),
        ("\x00\ud800\U000e0041", "\\x00\\ud800\\U000e0041"),
        ("ünï 漢字 😀", "ünï 漢字 😀"),
    ],
)
def test_printable(given_: str, shown: str) -> None:
    assert printable(given_) == shown


def test_printable_without_lines_and_within_a_limit() -> None:
    assert printable("a\nb\t", newlines=False) == "a\\nb\\t"
    assert printable("x" * 10, limit=4) == "xxxx... (6 more characters)"


@given(st.text(st.characters(exclude_categories=())))
def test_printable_is_always_harmless_and_encodable(text: str) -> None:
    shown = printable(text, newlines=False)
    assert not [c for c in shown if ord(c) < 32 or 0x7F <= ord(c) < 0xA0]
    shown.encode("utf-8")


def test_a_log_line_is_one_line_whatever_it_carries() -> None:
    stream = io.StringIO()
    configure("INFO", stream=stream)
    configure(logging.INFO, stream=stream)  # twice is once
    try:
        logging.getLogger("jurat.platform.runs").info("model said %s", "x\n12:00:00 error forged: y\x1b[2J")
        logging.getLogger("jurat").debug("not shown")
    finally:
        logger = logging.getLogger("jurat")
        logger.handlers.clear()
        logger.propagate = True
    (line,) = stream.getvalue().splitlines()
    assert line.split(" ", 1)[1] == "info runs: model said x\\n12:00:00 error forged: y\\x1b[2J"
