"""The demo tells each thing once, in words, and only what the API said."""

from __future__ import annotations

from typing import Any

import pytest

from spikeguard_trainer.demo.story import ending

COMMAND: dict[str, Any] = {
    "id": "demo#1.1",
    "number": 1,
    "verb": "rollback",
    "arguments": {"target": "checkpoint-200", "step": 200, "skip": {"first": 249, "end": 262}},
    "state": "proposed",
    "revision": 1,
    "reason": "the loss is climbing",
    "cost": {"steps": 70, "seconds": 14.0, "tokens": 1, "money": None},
    "decided_by": None,
    "applied_step": None,
    "result": None,
}
INCIDENT: dict[str, Any] = {
    "id": "demo#1",
    "number": 1,
    "state": "open",
    "first_signal": {"signal": "grad_norm", "step": 250},
    "title": "divergent spike",
    "onset_step": 250,
    "detected_step": 251,
    "closed_step": None,
    "kind": "divergent",
    "outcome": None,
    "reason": "it climbs",
    "evidence": {"worst_z": {"grad_norm": "inf"}},
    "revisions": [
        {"number": 1, "step": 251, "kind": "recoverable", "confidence": 0.5, "reason": "first"},
        {"number": 2, "step": 260, "kind": "divergent", "confidence": 0.9, "reason": "it climbs"},
    ],
    "commands": [COMMAND],
}


def _closed(outcome: str, **command: Any) -> dict[str, Any]:
    commands = [{**COMMAND, **command}] if command else []
    return {**INCIDENT, "state": "closed", "outcome": outcome, "commands": commands}


@pytest.mark.parametrize(
    ("incident", "words", "content"),
    [
        (
            _closed("recovered", state="judged", decided_by="ada"),
            "carried out, decided by ada",
            True,
        ),
        (_closed("healed"), "healed by itself", True),
        (_closed("level_accepted"), "new level accepted", False),
        (_closed("level_accepted", state="expired"), "nobody answered in time", False),
        (_closed("run_ended", state="run_ended"), "void: the run ended first", False),
        (_closed("run_ended", state="judged"), "run ended; roll back to step 200", False),
        (
            _closed("run_ended", state="rejected", decided_by="ada"),
            "rejected, decided by ada",
            True,
        ),
        ({**INCIDENT, "commands": []}, "still open", False),
    ],
)
def test_the_last_words_fit_what_became_of_it(
    incident: dict[str, Any], words: str, content: bool
) -> None:
    lines, well = ending([incident], 0)
    assert words in lines[-1]
    assert well is content
