"""Renders the pages: facts in, HTML out; every value is escaped by the templates."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from spikeguard_core.lifecycle.command_life import IN_FLIGHT, TAKEN_BACK, WAITING
from spikeguard_protocol import CommandState, IncidentId, Kind, Outcome, Signal
from spikeguard_protocol.paths import incident_page_path
from spikeguard_protocol.phrases import (
    CAUSE_WORDS,
    action_phrase,
    duration_phrase,
    ended_phrase,
    order_phrase,
    paragraphs,
    response_phrase,
    sure_phrase,
)
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.errors import ServiceError
from spikeguard_server.report.render import marked, shown
from spikeguard_server.report.wording import ENDINGS, large, number

FOLLOWED = IN_FLIGHT | {CommandState.APPLIED}
_TONES = {
    **dict.fromkeys(("applied", "judged", "healed", "recovered", "outlier"), "good"),
    **dict.fromkeys(("refused", "failed", "unknown", "undelivered"), "alarm"),
}


Visitor = Mapping[str, Any]  # who looks at a page, and what leads away from it


def answer(
    template: str, visitor: Visitor, *, refusal: ServiceError | None = None, **facts: Any
) -> HTMLResponse:
    """The page of `template` with what it shows; with a `refusal`, what was refused and why."""
    text = _environment().get_template(template).render({**visitor, "refusal": refusal, **facts})
    return HTMLResponse(text, refusal.status if refusal else 200)


@cache
def style() -> str:
    """The one style sheet."""
    return (files("spikeguard_server.http.pages") / "templates" / "style.css").read_text()


@cache
def _environment() -> Environment:
    loader = PackageLoader("spikeguard_server.http.pages", "templates")
    made = Environment(
        loader=loader,
        autoescape=True,
        finalize=shown,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"sort_keys": False}
    made.filters |= {
        "sure": sure_phrase,
        "action": action_phrase,
        "cause": lambda name: CAUSE_WORDS.get(name, words(name)),
        "count": large,
        "duration": duration_phrase,
        "ending": lambda outcome: ENDINGS[Outcome(outcome)],
        "first_view": lambda id: incident_page_path(IncidentId.parse(id)),
        "moment": moment,
        "nats": lambda value: f"{number(value)} nats per token",
        "number": number,
        "loss_expected": loss_expected,
        "marked": marked,
        "paragraphs": paragraphs,
        "response": response_sentence,
        "sentence": sentence,
        "standing": standing,
        "tone": lambda state: _TONES.get(state, "wait"),
        "waits": lambda command: CommandState(command["state"]) in WAITING,
        "whole": as_sentence,
        "words": words,
    }
    return made


def words(text: str) -> str:
    """`outlier_batch` as a person writes it."""
    return str(text).replace("_", " ")


def as_sentence(text: str) -> str:
    """What a job or a judge said, as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def moment(value: datetime) -> str:
    """`2026-03-14 03:07:12 UTC`."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def response_sentence(done: Mapping[str, Any]) -> str:
    """What a person did about an incident, as a sentence without its full stop."""
    said = response_phrase(done["action"], done["person"], done["assignee"], done["text"])
    return said if said.startswith(done["person"]) else f"{said[:1].upper()}{said[1:]}"


def loss_expected(incident: Mapping[str, Any]) -> tuple[str, str] | None:
    """The loss if the run goes back, and if nothing is done and the verdict is right; None where no
    trend is known. No figure of a later step: a trend tells none so far ahead."""
    if incident["trend"] is None:
        return None
    there, excess = "on its trend", incident["excess"]
    match Kind(incident["kind"]):
        case Kind.LINGERING if excess is not None and excess > 0.0:
            left = f"{incident['height']}, as now, or less"
        case Kind.LINGERING:
            left = "above its trend, by less than a row's noise"
        case _ if Signal.UPDATE_DROPPED in incident["evidence"]["worst_z"]:
            left = "as it is now, as long as no update reaches the weights"
        case Kind.DIVERGENT:
            left = "still off its trend"
        case _:
            left = there
    return there, left


def sentence(command: Mapping[str, Any], *, brief: bool = False) -> str:
    """What a command orders: `Roll back to step 4,000 (step-4000), skip batches 4,185 to 4,204`;
    `brief` names no target."""
    said = order_phrase(command["verb"], command["arguments"], brief=brief)
    return f"{said[0].upper()}{said[1:]}"


def standing(command: Mapping[str, Any]) -> str:
    """Where a decided command stands: `Approved by Ada Lovelace at …. The run has received it.`."""
    state, person = command["state"], command["decided_by"] or "the policy"
    decided = f" at {moment(command['decided_at'])}" if command["decided_at"] else ""
    step, words = command["applied_step"], COMMAND_STATE_WORDS[CommandState(state)]
    said = {
        "approved": f"Approved by {person}{decided}. The run has not picked it up yet.",
        "delivered": f"Approved by {person}{decided}. The run has received it.",
        "applied": f"Approved by {person}{decided}. Applied at step {step}.",
        "judged": f"Approved by {person}{decided}. Applied at step {step}.",
        "rejected": f"Rejected by {person}{decided}.",
    }.get(state)
    if said is not None:
        return said
    nothing = " Nothing was done." if CommandState(state) in TAKEN_BACK else ""
    return f"{ended_phrase(words, command['end_reason'])}{nothing}"
