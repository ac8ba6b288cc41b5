"""Bodies about a policy that is tried on a run's stored history."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from spikeguard_protocol import Kind
from spikeguard_server.domain.policy.settings import PolicyScope
from spikeguard_server.http.bodies.run_shapes import Number, Shape, example
from spikeguard_server.replay.preview import Foreseen

MOST_STEPS: Final = 20_000
MOST_SHOWN: Final = 200  # incidents of each policy, the newest
_PROPOSED: Final[dict[str, Any]] = {
    "step": 4232, "verb": "rollback", "arguments": {"target": "step-4000"}, "approval": "manual",
    "reason": "climbing for 20 steps", "cost_steps": 232, "cost_money": 61.2,
}  # fmt: skip
_INCIDENT: Final[dict[str, Any]] = {
    "branch": 0, "onset_step": 4211, "detected_step": 4212, "peak_step": 4219, "closed_step": None,
    "kind": "divergent", "confidence": 0.91, "signal": "loss", "peak_loss": 4.02,
    "proposals": [_PROPOSED],
}  # fmt: skip


class PreviewWanted(Shape):
    """A policy to try. `scope` says over what it is laid: what it leaves out is what the project's
    says now (`run`), or the default (`project`)."""

    model_config = example({"policy": {"patience_steps": 60}, "scope": "run", "steps": 20000})

    policy: dict[str, Any]
    scope: PolicyScope = PolicyScope.RUN
    steps: int = Field(MOST_STEPS, ge=100, le=MOST_STEPS, description="the newest stored ones")


class ForeseenProposal(Shape):
    """A command that would have been proposed; nobody answers it."""

    model_config = example(_PROPOSED)

    step: int
    verb: str
    arguments: dict[str, Any]
    approval: str = Field(description="manual, auto or shadow")
    reason: str
    cost_steps: int | None
    cost_money: Number | None


class ForeseenIncident(Shape):
    """An incident that would have been opened."""

    model_config = example(_INCIDENT)

    branch: int = Field(description="of the history: one that a rollback left counts on its own")
    onset_step: int
    detected_step: int
    peak_step: int
    closed_step: int | None = Field(description="null: still open where the samples end")
    kind: Kind
    confidence: float
    signal: str
    peak_loss: Number | None
    proposals: list[ForeseenProposal]


class ForeseenBody(Shape):
    """What one policy would have said. Of more than 200 incidents the newest are shown."""

    model_config = example(
        {"policy": "policy 3", "found": 1, "proposed": 1, "to_step": 4300, "incidents": [_INCIDENT]}
    )

    policy: str
    found: int = Field(description="incidents, an outlier batch among them")
    proposed: int = Field(description="commands other than watching")
    to_step: int | None = Field(description="how far it came in the time it had")
    incidents: list[ForeseenIncident]


class PreviewBody(Shape):
    """A policy tried on the newest stored samples of a run, beside the one in force. Both begin
    without what was learnt before `first_step`."""

    model_config = example(
        {
            "run": "gpt-124m-7", "first_step": 1, "last_step": 4300, "samples": 4300,
            "whole": True, "checkpoint_every": 1000,
            "now": {"policy": "policy 3", "found": 0, "proposed": 0, "to_step": 4300,
                    "incidents": []},
            "then": {"policy": "policy 3", "found": 1, "proposed": 1, "to_step": 4300,
                     "incidents": [_INCIDENT]},
        }
    )  # fmt: skip

    run: str
    first_step: int | None = Field(description="null: nothing is stored")
    last_step: int | None
    samples: int
    whole: bool = Field(description="false: time ran out, and the rest was not looked at")
    checkpoint_every: int = Field(description="steps, assumed")
    now: ForeseenBody = Field(description="by the policy in force")
    then: ForeseenBody = Field(description="by the one that was sent")


def foreseen_body(policy: str, found: list[Foreseen], to_step: int | None) -> ForeseenBody:
    """What one policy would have said."""
    proposed = [one for each in found for one in each.advice if one.plain()["verb"] != "watch"]
    newest = sorted(found, key=lambda one: one.found.onset_step)[-MOST_SHOWN:]
    return ForeseenBody(
        policy=policy, found=len(found), proposed=len(proposed), to_step=to_step,
        incidents=[_incident(one) for one in newest],
    )  # fmt: skip


def _incident(one: Foreseen) -> ForeseenIncident:
    found = one.found
    return ForeseenIncident(
        branch=one.branch, onset_step=found.onset_step, detected_step=found.detected_step,
        peak_step=found.peak_step, closed_step=found.closed_step, kind=found.judgement.kind,
        confidence=found.judgement.confidence, signal=found.signal, peak_loss=found.peak_loss,
        proposals=[_proposal(each.plain()) for each in one.advice],
    )  # fmt: skip


def _proposal(plain: dict[str, Any]) -> ForeseenProposal:
    cost = plain["cost"]
    told = {name: plain[name] for name in ("step", "verb", "arguments", "approval", "reason")}
    return ForeseenProposal(**told, cost_steps=cost["steps"], cost_money=cost["money"])
