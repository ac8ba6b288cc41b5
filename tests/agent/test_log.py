"""What the agent logs is one line a message, whatever a server or an error said."""

from __future__ import annotations

import logging

import pytest

from spikeguard.faults import Faults, log
from tests.hostile import HARMLESS, HOSTILE, acted_on


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_failed_is_told_on_one_line(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "spikeguard"):
        Faults().note("the sender", text)
        Faults().note("the journal", OSError(text))
        log.warning("checkpoint %s was passed over at step %d: %s", text, 3, OSError(text))
    assert len(caplog.messages) == 3
    for message in caplog.messages:
        assert acted_on(message, keep="") == []
    assert "at step 3" in caplog.messages[2]


def test_every_script_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    for text in HARMLESS:
        Faults().note("the sender", text)
        assert text in caplog.messages[-1]
