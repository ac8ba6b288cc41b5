"""Bodies about the kill switch and the scorecard of shadow mode."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import Field

from spikeguard_protocol import CommandId, IncidentId, RunId, Verb
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.domain.audit.changes import MAX_REASON
from spikeguard_server.domain.policy.shadow import Hindsight, Score, judge_shadow, scorecard
from spikeguard_server.http.bodies.run_shapes import TIME, Shape, example
from spikeguard_server.store.reads.shadows import Shown

_NAME = f"^{NAME_PATTERN.pattern}$"


class SwitchWanted(Shape):
    """Throw or lift the kill switch of a project, for a reason that the record keeps."""

    model_config = example({"project": "default", "reason": "a bad checkpoint went round"})

    project: str = Field(pattern=_NAME)
    reason: str = Field(min_length=1, max_length=MAX_REASON)


SHADOW_EXAMPLE: dict[str, Any] = {
    "command": "gpt-124m-7#3.1",
    "verb": "rollback",
    "at": TIME,
    "step": 4206,
    "cost_steps": 206,
    "policy_version": 2,
    "decided_by": "Ada Lovelace",
    "hindsight": "same",
    "saved_steps": 118,
}


class ShadowBody(Shape):
    """A yes that the policy would have given. `saved_steps` < 0: it would have cost that many."""

    model_config = example(SHADOW_EXAMPLE)

    command: str
    verb: Verb
    at: datetime
    step: int
    cost_steps: int
    policy_version: int
    decided_by: str | None
    hindsight: Hindsight
    saved_steps: int | None


class ScorecardBody(Shape):
    """What verbs in shadow mode would have done, newest first, and what that comes to."""

    model_config = example(
        {
            "project": "default",
            "decisions": 1,
            "by_hindsight": {
                "open": 0, "same": 1, "not_needed": 0, "missed": 0, "otherwise": 0,
            },
            "saved_steps": 118,
            "items": [SHADOW_EXAMPLE],
        }
    )  # fmt: skip

    project: str
    decisions: int
    by_hindsight: dict[Hindsight, int]
    saved_steps: int = Field(description="the sum of what is known; < 0: waiting was better so far")
    items: list[ShadowBody]


def scorecard_body(project: str, shown: Sequence[Shown]) -> ScorecardBody:
    """The scorecard as it travels."""
    scores = [judge_shadow(entry.decision) for entry in shown]
    card = scorecard(scores)
    return ScorecardBody(
        project=project,
        decisions=card.decisions,
        by_hindsight=card.by_hindsight,
        saved_steps=card.saved_steps,
        items=[_item(entry, score) for entry, score in zip(shown, scores, strict=True)],
    )


def _item(entry: Shown, score: Score) -> ShadowBody:
    row = entry.row
    incident = IncidentId(RunId(row.project, row.run), row.incident)
    return ShadowBody(
        command=str(CommandId(incident, row.command)),
        verb=Verb(row.verb),
        at=row.at,
        step=row.step,
        cost_steps=row.cost_steps,
        policy_version=row.policy_version,
        decided_by=row.decided_by,
        hindsight=score.hindsight,
        saved_steps=score.saved_steps,
    )
