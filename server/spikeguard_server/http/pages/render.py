"""Renders the pages. Pure: facts in, HTML out; every value is escaped by the templates."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spikeguard_core.diagnosis.forecast import told_height
from spikeguard_core.events import Trend
from spikeguard_core.lifecycle.command_life import IN_FLIGHT, TAKEN_BACK, WAITING
from spikeguard_core.lifecycle.damage import aftermath_of
from spikeguard_protocol import (
    BatchDetail,
    CommandState,
    IncidentId,
    IncidentState,
    Kind,
    Outcome,
    RunId,
    Signal,
)
from spikeguard_protocol.escaping import html_text
from spikeguard_protocol.paths import act_path, incident_page_path
from spikeguard_protocol.phrases import (
    CAUSE_WORDS,
    ended_phrase,
    order_phrase,
    paragraphs,
    response_phrase,
    sure_phrase,
    waits_phrase,
)
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.errors import ServiceError
from spikeguard_server.http.pages.layer_cells import LayerCells
from spikeguard_server.identity.permissions import Caller
from spikeguard_server.report.wording import ENDINGS, number
from spikeguard_server.store.policies import Switch
from spikeguard_server.store.reads.history import ShownTarget

FOLLOWED = IN_FLIGHT | {CommandState.APPLIED}
_CODE = re.compile(r"`([^`]+)`")
_TONES = {
    **dict.fromkeys(("applied", "judged", "healed", "recovered", "outlier"), "good"),
    **dict.fromkeys(("refused", "failed", "unknown", "undelivered"), "alarm"),
}


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """Who looks at a page, and what leads away from it."""

    caller: Caller | None
    dashboard_url: str
    person: str | None = None  # who decides, where no login says so

    def facts(self) -> dict[str, Any]:
        """What every template may show."""
        if self.caller is None:
            role = "not signed in" if self.person else None
            known = {"person": self.person, "role": role, "signed_in": False}
            return {**known, "dashboard_url": self.dashboard_url}
        return {
            "signed_in": True,
            "person": self.caller.person,
            "role": self.caller.role.value,
            "project": self.caller.project,
            "expires_in_s": self.caller.expires_in_s,
            "dashboard_url": self.dashboard_url,
        }


def login_page(
    page: HtmlPage,
    *,
    key: str,
    next_path: str = "",
    name: str = "",
    refusal: ServiceError | None = None,
    provider: str = "",
) -> str:
    """The form to log in, or who is logged in; `provider`: where one can sign in too."""
    facts = {"next": next_path, "name": name, "refusal": refusal, "provider": provider}
    return _render("login.html", page, key=key, **facts)


def sign_in_page(page: HtmlPage, *, name: str, link_s: float) -> str:
    """What a sign-in link leads to: one button."""
    return _render("signin.html", page, name=name, link_s=link_s)


@dataclass(frozen=True, slots=True)
class IncidentView:
    """An incident as it stands, for the pages that show it."""

    incident: Mapping[str, Any]  # as the API tells it, with its commands
    lines: Sequence[str]  # what is needed to decide, as the messages say it
    picture: bytes  # SVG; empty where nothing was measured
    picture_label: str  # for those who do not see it
    halted: bool  # the kill switch stops every approval
    job: str | None  # what to look at where the run's job may have died
    snoozed_s: float | None  # nobody is told of it for so long
    age_s: float | None  # of the run's newest message
    silent: bool  # whether that is too old to rely on
    ended: bool  # whether nothing of the run trains, so that it takes no orders

    def facts(self) -> dict[str, Any]:
        """What a template shows of it."""
        address = f"data:image/svg+xml;base64,{b64encode(self.picture).decode()}"
        named = {part.name: getattr(self, part.name) for part in fields(self)}
        run = IncidentId.parse(self.incident["id"]).run
        return {**named, "picture": address if self.picture else "", "act": act_path(run)}


@dataclass(frozen=True, slots=True)
class EvidenceView:
    """What an incident was found out by, for its first view."""

    batch: BatchDetail | None  # of the onset
    batch_worst: str | None  # sentences
    batch_contrast: str | None
    layers: LayerCells | None
    targets: Sequence[ShownTarget]  # newest first
    links: Mapping[str, str]  # name -> where the job's own tracker shows the attempt

    def facts(self) -> dict[str, Any]:
        """What a template shows of it."""
        return {part.name: getattr(self, part.name) for part in fields(self)}


def incident_page(
    page: HtmlPage, view: IncidentView, evidence: EvidenceView, *, key: str,
    refusal: ServiceError | None = None, write: bool = False,
) -> str:  # fmt: skip
    """An incident at a glance; without a `key` nothing can be done from it. `write`: with the forms
    for what has to be typed."""
    shown = {**view.facts(), **evidence.facts()}
    return _render("incident.html", page, key=key, refusal=refusal, write=write, **shown)


@dataclass(frozen=True, slots=True)
class InboxView:
    """What waits for people, as the API tells it, and the kill switches of the projects."""

    inbox: Mapping[str, Any]
    switches: Sequence[Switch]


def inbox_page(
    page: HtmlPage, view: InboxView, *, key: str, write: bool = False,
    refusal: ServiceError | None = None,
) -> str:  # fmt: skip
    """What waits for people; without a `key` nothing can be done from it. `write`: with the form
    of the kill switch."""
    facts = {"inbox": view.inbox, "switches": view.switches}
    return _render("inbox.html", page, key=key, refusal=refusal, write=write, **facts)


def confirm_page(
    page: HtmlPage,
    view: IncidentView,
    command: Mapping[str, Any],
    *,
    key: str,
    refusal: ServiceError | None = None,
    outdated: bool = False,
    spent: bool = False,
) -> str:
    """One command with its incident, and the two buttons while it waits; none for a link that was
    used or is to a revision that is outdated. A command that was approved is followed until it is
    judged."""
    going_on = CommandState(command["state"]) in FOLLOWED
    follows = going_on and view.incident["state"] != IncidentState.CLOSED
    facts = {"command": command, "outdated": outdated, "spent": spent, "follows": follows}
    return _render("confirm.html", page, key=key, refusal=refusal, **view.facts(), **facts)


def act_page(page: HtmlPage, *, refusal: ServiceError | None = None, **facts: Any) -> str:
    """What can be ordered of a run, or, with a plan, exactly what is going to be done."""
    run: RunId = facts["run"]
    place = f"{quote(run.project, safe='')}/{quote(run.name, safe='')}"
    return _render("act.html", page, refusal=refusal, place=place, **facts)


def refusal_page(page: HtmlPage, refusal: ServiceError) -> str:
    """An error as a person reads it."""
    return _render("refusal.html", page, refusal=refusal)


@cache
def style() -> str:
    """The one style sheet."""
    return (files("spikeguard_server.http.pages") / "templates" / "style.css").read_text()


def _render(template: str, page: HtmlPage, **facts: Any) -> str:
    return _environment().get_template(template).render({**page.facts(), **facts})


@cache
def _environment() -> Environment:
    loader = PackageLoader("spikeguard_server.http.pages", "templates")
    made = Environment(
        loader=loader,
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    made.policies["json.dumps_kwargs"] = {"sort_keys": False}
    made.filters |= {
        "sure": sure_phrase,
        "cause": lambda name: CAUSE_WORDS.get(name, words(name)),
        "count": compact_count,
        "duration": short_duration,
        "ending": lambda outcome: ENDINGS[Outcome(outcome)],
        "first_view": lambda id: incident_page_path(IncidentId.parse(id)),
        "moment": moment,
        "nats": nats,
        "number": short_number,
        "loss_expected": loss_expected,
        "marked": marked,
        "paragraphs": paragraphs,
        "response": response,
        "sentence": sentence,
        "standing": standing,
        "tone": lambda state: _TONES.get(state, "wait"),
        "waits_words": waits_phrase,
        "waits": lambda command: CommandState(command["state"]) in WAITING,
        "whole": as_sentence,
        "words": words,
    }
    return made


def _shown(value: Any) -> Any:
    """What the templates show of `value`: text by the one function that writes it as HTML."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return Markup(html_text(str(value)))
    return value


def marked(text: str) -> Markup:
    """A sentence of ours with what stands between backticks set as code."""
    return Markup(_CODE.sub(r"<code>\1</code>", html_text(str(text))))


def words(text: str) -> str:
    """`outlier_batch` as a person writes it."""
    return str(text).replace("_", " ")


def as_sentence(text: str) -> str:
    """What a job or a judge said, as a sentence of its own."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '!', '?')) else '.'}"


def short_number(value: float | None) -> str:
    """A measured value to four digits; a dash for what was not measured."""
    return "-" if value is None else f"{value:.4g}"


def nats(value: float | None) -> str:
    """A loss with its unit."""
    return short_number(value) if value is None else f"{short_number(value)} nats per token"


def compact_count(value: float) -> str:
    """`110.6 M`."""
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}"


def short_duration(seconds: float | None) -> str:
    """`42 s`, `5.2 min`, `11.9 h`; a dash for what is not known."""
    if seconds is None:
        return "-"
    for size, unit in ((86400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"


def moment(value: datetime) -> str:
    """`2026-03-14 03:07:12 UTC`."""
    return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def response(done: Mapping[str, Any]) -> str:
    """What a person did about an incident, as a sentence without its full stop."""
    said = response_phrase(done["action"], done["person"], done["assignee"], done["text"])
    return said if said.startswith(done["person"]) else f"{said[:1].upper()}{said[1:]}"


def loss_expected(incident: Mapping[str, Any]) -> tuple[str, str] | None:
    """The loss at one future step if the run goes back, and if nothing is done and the verdict is
    right; None where no trend is known."""
    if incident["trend"] is None:
        return None
    step = incident["newest_step"] + aftermath_of(incident["onset_step"])
    excess = incident["excess"]
    trend = Trend(**incident["trend"])
    back = trend.at(step)
    there = f"at step {step:,} about {number(back)}, on its trend"
    match Kind(incident["kind"]):
        case Kind.LINGERING if excess is not None and excess > 0.0:
            height = told_height(excess, trend, step)
            left = f"at step {step:,} about {number(back + excess)} at most, {height}"
        case Kind.LINGERING:
            left = f"at step {step:,} above its trend, by less than a row's noise"
        case _ if Signal.UPDATE_DROPPED in incident["evidence"]["worst_z"]:
            left = "as it is now, as long as no update reaches the weights"
        case Kind.DIVERGENT:
            left = f"at step {step:,} still off its trend"
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
