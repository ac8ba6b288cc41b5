"""Bodies about notes: changes that people reported or the server found, and their effect."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_server.http.bodies.run_shapes import (
    NoteBody,
    ReasonGiven,
    Shape,
)
from spikeguard_server.store.notes import outcome_words
from spikeguard_server.store.paging import Row

MAX_TEXT = 500  # characters of a note
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_TEXT)]


class NoteWanted(Shape):
    """A change that a person tells of."""

    text: Text = Field(description="what was changed")
    step: int | None = Field(
        None, ge=0, le=MAX_STEP, description="the last step before it; null: the run's newest"
    )
    reason: ReasonGiven = None
    expect: ExpectedEffect | None = Field(None, description="of the loss, against its trend")
    expect_size: float | None = Field(
        None, gt=0.0, lt=1e6, allow_inf_nan=False, description="by how much, nats"
    )


class NoteList(Shape):
    """Notes, newest first."""

    items: list[NoteBody]
    next_cursor: str | None


_SAME = (
    "number", "source", "at", "began", "segment", "step", "text", "reason", "changes",
    "due_step", "judged_at", "judged_step", "effect", "effect_error", "unknown",
)  # fmt: skip


def note_body(row: Row) -> NoteBody:
    """A note with what became of it in words."""
    told = {name: row._mapping[name] for name in _SAME}
    return NoteBody(
        **told,
        author=row.actor,
        attempt=row.attempt_id,
        expect=row.expected,
        expect_size=row.expected_size,
        outcome=outcome_words(row),
    )
