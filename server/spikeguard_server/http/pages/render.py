"""Renders the pages: facts in, HTML out; every value is escaped by the templates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import groupby, takewhile
from typing import Any, Final

from fastapi.responses import HTMLResponse
from jinja2 import Environment

from spikeguard_core.diagnosis.cause.layers import LayerMap
from spikeguard_core.lifecycle.command_life import IN_FLIGHT, TAKEN_BACK, WAITING
from spikeguard_protocol import CommandState, IncidentId, Kind, Outcome, Signal
from spikeguard_protocol.paths import incident_page_path
from spikeguard_protocol.phrases import (
    action_phrase,
    cause_phrase,
    duration_phrase,
    ended_phrase,
    order_phrase,
    paragraphs,
    response_phrase,
    sure_phrase,
)
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.errors import ServiceError
from spikeguard_server.report.render import templates
from spikeguard_server.report.wording import ENDINGS, capital, large, number

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
    made = templates("spikeguard_server.http.pages")
    made.policies["json.dumps_kwargs"] = {"sort_keys": False}
    made.filters |= {
        "sure": sure_phrase,
        "action": action_phrase,
        "cause": cause_phrase,
        "count": large,
        "duration": duration_phrase,
        "ending": lambda outcome: ENDINGS[Outcome(outcome)],
        "first_view": lambda id: incident_page_path(IncidentId.parse(id)),
        "moment": moment,
        "nats": lambda value: f"{number(value)} nats per token",
        "number": number,
        "loss_expected": loss_expected,
        "paragraphs": paragraphs,
        "response": response_sentence,
        "sentence": sentence,
        "standing": standing,
        "tone": lambda state: _TONES.get(state, "wait"),
        "waits": lambda command: CommandState(command["state"]) in WAITING,
        "whole": as_sentence,
    }
    return made


def as_sentence(text: str) -> str:
    """What a job or a judge said, as a sentence of its own."""
    return capital(text) + ("" if text.endswith((".", "!", "?")) else ".")


def moment(value: datetime) -> str:
    """`2026-03-14 03:07:12 UTC`."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def response_sentence(done: Mapping[str, Any]) -> str:
    """What a person did about an incident, as a sentence without its full stop."""
    said = response_phrase(done["action"], done["person"], done["assignee"], done["text"])
    return said if said.startswith(done["person"]) else capital(said)


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
    return capital(order_phrase(command["verb"], command["arguments"], brief=brief))


def standing(command: Mapping[str, Any]) -> str:
    """Where a decided command stands: `Approved by Ada Lovelace at …. The run has received it.`."""
    state = CommandState(command["state"])
    by = f"by {command['decided_by'] or 'the policy'}"
    by += f" at {moment(command['decided_at'])}" if command["decided_at"] else ""
    match state:
        case CommandState.REJECTED:
            return f"Rejected {by}."
        case CommandState.APPROVED:
            return f"Approved {by}. The run has not picked it up yet."
        case CommandState.DELIVERED:
            return f"Approved {by}. The run has received it."
        case CommandState.APPLIED | CommandState.JUDGED:
            return f"Approved {by}. Applied at step {command['applied_step']}."
    nothing = " Nothing was done." if state in TAKEN_BACK else ""
    return f"{ended_phrase(COMMAND_STATE_WORDS[state], command['end_reason'])}{nothing}"


# Norms by layer as cells: those of one level that follow one another are one, and those at their
# usual norm none, so that a map of any size is a few kilobytes.

WIDTH, NAMES, ROW = 320.0, 104.0, 11.0  # units of the picture; of it names; height of a row
LONGEST_NAME: Final = 19  # characters
LEVELS: Final = (1.5, 2.0, 4.0, 8.0, 16.0)  # times its usual norm; beyond them: not finite


def cells_of(found: LayerMap) -> dict[str, Any]:
    """`found` as the template draws it."""
    size = (WIDTH - NAMES) / len(found.steps)
    onset = next((n for n, step in enumerate(found.steps) if step >= found.onset_step), None)
    shared = _shared(found.rows)
    return {
        "names": [  # text, y, whether the first to move lies there
            (name, n * ROW, n == found.first_row)
            for n, name in enumerate(_short([name[shared:] for name in found.rows]))
        ],
        "cells": [cell for n, ratios in enumerate(found.ratios) for cell in _row(n, ratios, size)],
        "ticks": _ticks(found, onset, size),
        "onset_x": None if onset is None else _left(onset, size),
        "height": len(found.rows) * ROW,
        "layers": found.layers,
        "sentence": found.sentence,
    }


def _shared(names: Sequence[str]) -> int:
    """Characters of the parts that every name begins with, which tell no layer from another."""
    parts = [name.split(".")[:-1] for name in names]
    same = takewhile(lambda alike: len(set(alike)) == 1, zip(*parts, strict=False))
    return sum(len(part[0]) + 1 for part in same) if len(names) > 1 else 0


def _row(
    number: int, ratios: Sequence[float | None], size: float
) -> Iterator[tuple[float, float, float, int]]:
    """Steps that stand out alike: x, y, width, level."""
    for level, some in groupby(enumerate(ratios), key=lambda place: _level(place[1])):
        places = [place for place, _ in some]
        if level:
            width = round(len(places) * size, 2)
            yield _left(places[0], size), number * ROW, width, level


def _level(ratio: float | None) -> int:
    if ratio is None:
        return 0
    return sum(ratio >= least for least in LEVELS) + (not math.isfinite(ratio))


def _left(place: int, size: float) -> float:
    return round(NAMES + place * size, 2)


def _ticks(found: LayerMap, onset: int | None, size: float) -> list[tuple[str, float, str]]:
    """Step, x, which end of the text stands there: of the first, the onset's and the last, as far
    as there is room between them."""
    steps, last = found.steps, len(found.steps) - 1
    ends = [(f"{steps[0]:,}", NAMES, "start"), (f"{steps[last]:,}", WIDTH, "end")]
    if onset is None or not 0.2 < onset / len(steps) < 0.75:
        return ends
    return [*ends, (f"{found.onset_step:,}", _left(onset, size), "middle")]


def _short(names: Sequence[str]) -> list[str]:
    """The end of a name says most: `7.attention.qkv`; what begins alike is cut alike."""
    short = [name.removesuffix(".weight") for name in names]
    while heads := {n.partition(".")[0] for n in short if len(n) > LONGEST_NAME and "." in n}:
        parts = [name.partition(".") for name in short]
        short = [rest if dot and head in heads else head + dot + rest for head, dot, rest in parts]
    return [n if len(n) <= LONGEST_NAME else f"…{n[-LONGEST_NAME + 1 :]}" for n in short]
