"""What travels: what was done to a run, by whom, why, what was expected and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_protocol import Rollback, RunId, to_json
from spikeguard_protocol.phrases import order_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.entities import CommandRow
from spikeguard_server.http.bodies.incidents import plain_arguments
from spikeguard_server.http.bodies.run_shapes import Number, Shape
from spikeguard_server.store.notes import outcome_words
from spikeguard_server.store.paging import Row
from spikeguard_server.store.reads.history import Intervention


class InterventionBody(Shape):
    """One thing that was done to a run: a command of the job, or a change made outside."""

    id: str = Field(description="of a command its id, of a note `RUN/note-NUMBER`")
    source: Literal["command", "person", "attempt"] = Field(
        description="command: ordered here; person: told of; attempt: found where one began"
    )
    at: datetime
    by: str = Field(description="who ordered or told it; of a proposal the policy")
    approved_by: str | None
    step: int | None = Field(description="it was carried out at; null: not, or not yet")
    goes_on_from: int | None = Field(description="the last step before what it changed")
    what: str
    why: str | None
    state: str | None = Field(description="of a command")
    expect: ExpectedEffect | None
    expect_size: float | None = Field(description="nats")
    effect: Number | None = Field(description="of the loss above its earlier trend, nats")
    effect_error: Number | None = Field(description="half width of its 95 % interval, nats")
    judged_step: int | None
    outcome: str = Field(description="the effect, or why there is none, in words")
    judgement: str | None = Field(description="of a command: what became of it")


class InterventionList(Shape):
    """What was done to a run, newest first."""

    items: list[InterventionBody]
    next_cursor: str | None


def intervention_body(one: Intervention, run: RunId) -> InterventionBody:
    """What is told of it."""
    row, note = one.command, one.note
    if row is None:
        assert note is not None
        return InterventionBody(
            id=f"{run}/note-{note.number}", source=note.source, at=note.at, by=note.actor,
            approved_by=None, step=note.step, goes_on_from=note.step, what=note.text,
            why=note.reason, state=None, judgement=None, outcome=outcome_words(note),
            **_effect(note),
        )  # fmt: skip
    back = row.action.step if isinstance(row.action, Rollback) else row.applied_step
    return InterventionBody(
        id=str(row.id), source="command", at=row.decided_at or row.proposed_at,
        by=row.proposed_by or f"policy {row.policy_version}", approved_by=row.decided_by,
        step=row.applied_step, goes_on_from=None if row.applied_step is None else back,
        what=order_phrase(row.verb, plain_arguments(to_json(row.action))), why=row.reason,
        state=row.state, judgement=row.judgement, outcome=_outcome(row, note), **_effect(note),
    )  # fmt: skip


def _outcome(row: CommandRow, note: Row | None) -> str:
    if row.state not in EXECUTED:
        return COMMAND_STATE_WORDS[row.state]
    if note is None:
        return "it changes nothing that the loss could tell of"
    return outcome_words(note)


def _effect(row: Row | None) -> dict[str, Any]:
    told = {} if row is None else row._mapping
    return {
        "expect": told.get("expected"), "expect_size": told.get("expected_size"),
        **{name: told.get(name) for name in ("effect", "effect_error", "judged_step")},
    }  # fmt: skip
