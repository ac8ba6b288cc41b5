"""What travels: what was done to a run, by whom, why, what was expected and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_protocol import Verb
from spikeguard_protocol.phrases import order_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS, CommandState
from spikeguard_server.http.bodies.incidents import plain_arguments
from spikeguard_server.http.bodies.run_shapes import Number, Shape
from spikeguard_server.store.effects import outcome_words
from spikeguard_server.store.reads.history import Row
from spikeguard_server.store.reads.interventions import Intervention


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


def intervention_body(one: Intervention) -> InterventionBody:
    """What is told of it."""
    if one.command is None:
        assert one.note is not None
        return _note(one.id, one.note)
    return _command(one.id, one.command, one.note)


def _note(id: str, row: Row) -> InterventionBody:
    return InterventionBody(
        id=id, source=row.source, at=row.at, by=row.actor, approved_by=None, step=row.step,
        goes_on_from=row.step, what=row.text, why=row.reason, state=None,
        judgement=None, **_effect(row), outcome=outcome_words(row),
    )  # fmt: skip


def _command(id: str, row: Row, note: Row | None) -> InterventionBody:
    by = row.proposed_by or f"policy {row.policy_version}"
    return InterventionBody(
        id=id, source="command", at=row.decided_at or row.proposed_at, by=by,
        approved_by=row.decided_by, step=row.applied_step,
        goes_on_from=_goes_on_from(row),
        what=order_phrase(row.verb, plain_arguments(row.arguments)),
        why=row.reason, state=row.state, judgement=row.judgement,
        **_effect(note), outcome=_outcome(row, note),
    )  # fmt: skip


def _goes_on_from(row: Row) -> int | None:
    if row.applied_step is None:
        return None
    back = row.verb == Verb.ROLLBACK
    return int(row.arguments["step"] if back else row.applied_step)


def _outcome(row: Row, note: Row | None) -> str:
    state = CommandState(row.state)
    if state not in EXECUTED:
        return COMMAND_STATE_WORDS[state]
    if note is None:
        return "it changes nothing that the loss could tell of"
    return outcome_words(note)


def _effect(row: Row | None) -> dict[str, Any]:
    names = ("effect", "effect_error", "judged_step")
    told = {name: None if row is None else row._mapping[name] for name in names}
    expected = {"expect": None, "expect_size": None}
    if row is not None:
        expected = {"expect": row.expected, "expect_size": row.expected_size}
    return {**told, **expected}
