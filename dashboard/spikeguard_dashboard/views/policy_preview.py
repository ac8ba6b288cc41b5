"""What changed settings would have done on a run's stored history, beside those in force."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import streamlit as st

from spikeguard_client import Foreseen, ForeseenIncident, PolicyPreview
from spikeguard_dashboard import markup, words
from spikeguard_dashboard.history import kept_of
from spikeguard_dashboard.markup import Column, Content, Html
from spikeguard_dashboard.preview_chart import Event, event_chart, loss_chart
from spikeguard_dashboard.series import Series
from spikeguard_dashboard.visit import Visit
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path

COLUMNS: Final = (
    Column("By"),
    Column("Onset", numeric=True),
    Column("Kind"),
    Column("Detected", numeric=True),
    Column("Closed", named=True),
    Column("Would have proposed", named=True),
)
MOST_ROWS: Final = 40
NOW, THEN = "in force", "changed"


@dataclass(frozen=True, slots=True)
class Tried:
    """A policy, and the run that it is tried on."""

    run: RunId
    policy: Mapping[str, Any]
    scope: str


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the server answered, with the loss that it is about."""

    answer: PolicyPreview
    loss: Series


def preview(visit: Visit, key: str, tried: Tried) -> None:
    """Ask the server, and keep its answer until another one is asked for."""
    st.session_state.pop(key, None)
    path = f"{run_path(tried.run)}/policy/preview"
    body = {"policy": dict(tried.policy), "scope": tried.scope}
    answer = visit.client.post_reading(PolicyPreview, path, visit.token, body)
    first, last = answer["first_step"], answer["last_step"]
    loss = visit.client.series(visit.token, tried.run, ["loss"], first=first, last=last)
    st.session_state[key] = _Kept(answer, loss)


def draw_preview(visit: Visit, key: str) -> None:
    """The newest answer, if there is one."""
    kept = st.session_state.get(key)
    if not isinstance(kept, _Kept):
        return
    answer = kept.answer
    if answer["first_step"] is None or answer["last_step"] is None:
        st.html(markup.block(markup.paragraph("No sample of this run is stored any more.")))
        return
    st.html(markup.block(*_summary(answer)))
    events = [*_events(answer["now"], NOW), *_events(answer["then"], THEN)]
    ends = (answer["first_step"], max(answer["last_step"], answer["first_step"] + 1))
    kept_steps = kept_of(kept.loss.segments)
    curve = loss_chart(kept.loss, kept_steps, ends, dark=visit.dark)
    st.vega_lite_chart(curve, width="stretch", key=f"{key} loss")
    strips = event_chart(events, ends, dark=visit.dark)
    st.vega_lite_chart(strips, width="stretch", key=f"{key} events")
    st.html(markup.block(_legend()))
    if rows := _rows(answer):
        st.html(markup.block(markup.table(COLUMNS, rows, stacked=True)))


def _summary(answer: PolicyPreview) -> list[Html]:
    first, last = words.count(answer["first_step"]), words.count(answer["last_step"])
    lines: list[Content] = [
        f"Steps {first} to {last} of {answer['run']}, {answer['samples']:,} samples.",
        f"In force: {_told(answer['now'])}. As changed: {_told(answer['then'])}.",
    ]
    if not answer["whole"]:
        lines.append(
            "Time ran out: only up to step "
            f"{words.count(answer['now']['to_step'])} and {words.count(answer['then']['to_step'])}."
        )
    every = f"Checkpoints are assumed every {answer['checkpoint_every']:,} steps"
    soft = markup.soft(f"{every}; nobody answers, so later proposals may differ.")
    return [markup.section("What it would have done"), *map(markup.paragraph, [*lines, soft])]


def _legend() -> Html:
    texts = ("bar: an incident, from onset to close", "tick: a command would have been proposed",
             "dashed: undone by a rollback")  # fmt: skip
    spans = markup.joined(*map(markup.soft, texts))
    return Html(f'<div class="sg-legend">{spans.text}</div>')


def _told(one: Foreseen) -> str:
    incidents = f"{one['found']} incident{'s' * (one['found'] != 1)}"
    return f"{incidents}, {one['proposed']} proposal{'s' * (one['proposed'] != 1)} to act"


def _events(one: Foreseen, whose: str) -> list[Event]:
    found: list[Event] = []
    for incident in one["incidents"]:
        label = f"{words.plain(incident['kind'])}, onset {incident['onset_step']:,}"
        end = incident["closed_step"] or one["to_step"] or incident["peak_step"]
        last = max(end, incident["detected_step"])
        asked = [each["step"] for each in incident["proposals"] if each["verb"] != "watch"]
        found.append(Event(whose, incident["onset_step"], last, label, tuple(asked)))
    return found


def _rows(answer: PolicyPreview) -> list[Sequence[Content]]:
    both = [
        *((NOW, one) for one in answer["now"]["incidents"]),
        *((THEN, one) for one in answer["then"]["incidents"]),
    ]
    both.sort(key=lambda row: (row[1]["onset_step"], row[0]))
    return [_row(whose, one) for whose, one in both[-MOST_ROWS:]]


def _row(whose: str, one: ForeseenIncident) -> Sequence[Content]:
    asked = [
        f"{words.command(each['verb'], each['arguments']).rstrip('.')}, at step {each['step']:,}"
        for each in one["proposals"]
    ]
    return [
        markup.chip("pending" if whose == NOW else "proposed", whose),
        words.count(one["onset_step"]),
        markup.unbroken(markup.chip(one["kind"]), markup.soft(words.percent(one["confidence"]))),
        words.count(one["detected_step"]),
        words.count(one["closed_step"]) if one["closed_step"] else "open at the end",
        "; ".join(asked) or "nothing",
    ]
