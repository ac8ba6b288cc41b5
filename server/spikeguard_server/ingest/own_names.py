"""Limits how many signals of its own a run has, because tables grow with names times steps.

Law: the first `MOST_OWN` names of a run stay for good. What comes under another name is left out,
the rest of its record is stored, and the run's audit says so once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from spikeguard_protocol import STANDARD_SIGNALS, Samples
from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store.audit import SERVER, append

MOST_OWN: Final = 128  # names of a run; a record has 64 at most
STANDARD: Final = frozenset(STANDARD_SIGNALS)


def within_own_names(intake: Intake, samples: Samples) -> Samples:
    """The samples, which have signals of the job's own, without what the run has no room for any
    more."""
    known: list[str] = json.loads(intake.run.own_names or "[]")
    kept = frozenset(known[:MOST_OWN])
    fresh = [name for name in samples.signals if name not in STANDARD and name not in kept]
    if not fresh:
        return samples
    room = max(0, MOST_OWN - len(known))
    left_out = fresh[room:]
    # One beyond the most says that the run was told.
    told = len(known) > MOST_OWN
    intake.run.own_names = json.dumps([*known, *fresh][: MOST_OWN + 1])
    if not left_out:
        return samples
    if not told:
        _tell(intake, left_out)
    signals = {n: column for n, column in samples.signals.items() if n not in left_out}
    return replace(samples, signals=signals)


def _tell(intake: Intake, left_out: Sequence[str]) -> None:
    append(
        intake.connection, intake.run_id, actor=SERVER, action="signals.left_out",
        subject=f"run {intake.run.id}",
        reason=f"a run has {MOST_OWN} signals of its own at most: {left_out[0]} is not stored, nor "
        "any other new name; log under names that stay the same",
    )  # fmt: skip
