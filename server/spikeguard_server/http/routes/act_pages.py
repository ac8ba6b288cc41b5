"""The page to act on a run and its open incident: choose, see what it does and costs, do it.

No scripts. GET shows and changes nothing, POST acts, with the key of the form. It is judged where
every order is: what changed meanwhile is shown, and asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Form, Query, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, StringConstraints

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.policy.cost import cost_of
from spikeguard_protocol import (
    RUN_ITSELF,
    Action,
    BatchRange,
    Health,
    IncidentId,
    RunId,
    Verb,
    verb_of,
)
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_protocol.orders import type_of_verb
from spikeguard_protocol.paths import act_path, confirm_path
from spikeguard_protocol.phrases import action_phrase
from spikeguard_server.errors import ServiceError, Unprocessable
from spikeguard_server.http.bodies.incidents import command_bodies, intervention_body
from spikeguard_server.http.bodies.run_shapes import LONGEST_TEXT
from spikeguard_server.http.dependencies import Call, CallDep, RunDep
from spikeguard_server.http.pages.render import FOLLOWED, answer
from spikeguard_server.http.routes.commands import (
    CommandNumber,
    OptionsBody,
    TargetOption,
    options_body,
    order,
)
from spikeguard_server.http.routes.pages import check_key, decider_key, page_of
from spikeguard_server.ingest.orders import OF_INCIDENT, Ordered, planned, why_no_orders
from spikeguard_server.report.wording import capital
from spikeguard_server.store.commands import list_run_commands
from spikeguard_server.store.incidents import open_incident
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.runs import read_interventions, read_run
from spikeguard_server.store.runs import run_named
from spikeguard_server.store.situations import Options, read_options

MOST_SHOWN: Final = 200  # targets
VERB_WORDS: Final = {
    Verb.ROLLBACK: "Roll back",
    Verb.SKIP_BATCHES: "Skip batches",
    Verb.SCALE_LR: "Lower the rate",
    Verb.APPLY: "Apply a mitigation",
    Verb.WATCH: "Watch",
    Verb.CHECKPOINT_NOW: "Save a checkpoint",
    Verb.STOP: "Stop",
}
Text = Annotated[str, StringConstraints(max_length=200)]


ASKED: Final = {  # what a verb that has such an argument does not do without
    "target": "Choose what to go back to",
    "batches": "Give the first and the last batch to skip",
    "factor": "Give the factor of the learning rate",
    "steps": "Say for how many steps",
    "name": "Choose a mitigation",
}
KINDS: Final[Mapping[str, type[int] | type[float]]] = {
    **dict.fromkeys(("steps", "lr_steps", "apply_steps", "skip", "batches"), int),
    **dict.fromkeys(("factor", "lr_factor", "lr_cap"), float),
}


class OrderForm(BaseModel):
    """The form as it was filled in: arguments of the verb, of batches the first and the last."""

    verb: Text = ""
    target: Text = ""
    skip_first: Text = ""
    skip_last: Text = ""
    lr_factor: Text = ""
    lr_steps: Text = ""
    lr_cap: Text = ""
    apply: Text = ""
    apply_steps: Text = ""
    batches_first: Text = ""
    batches_last: Text = ""
    factor: Text = ""
    steps: Text = ""
    name: Text = ""

    def filled(self) -> dict[str, str]:
        """What was filled in, by field."""
        known = {name: getattr(self, name).strip() for name in OrderForm.model_fields}
        return {name: text for name, text in known.items() if text}

    def address(self, path: str) -> str:
        """Where the page is shown with these fields."""
        return f"{path}?{urlencode(self.filled())}"

    def read(self) -> tuple[Verb, dict[str, Any]]:
        """The verb and its arguments; raise `Unprocessable` for what is no number or no verb."""
        if self.verb not in set(Verb):
            raise Unprocessable("Choose what is to be done", "Use the buttons", field="verb")
        verb, given, found = Verb(self.verb), self.filled(), dict[str, Any]()
        for name in (f.name for f in fields(type_of_verb[verb])):
            ends = [given.get(f"{name}_{end}", "") for end in ("first", "last")]
            if any(ends):
                first, last = (_number(end, name) for end in ends)
                found[name] = [first, last + 1]
            elif text := given.get(name):
                found[name] = _number(text, name) if name in KINDS else text
            elif name in ASKED:
                raise Unprocessable(ASKED[name], "Nothing has been ordered", field=name)
        return verb, found

    def with_target(self, target: TargetOption, older: int) -> OrderForm:
        """The same with another target, `older` steps before the one that is chosen. Batches that
        it has read cannot be left out behind it; a rate with a cap is lowered up to the same
        step."""
        changed, first = {"target": target.name}, self.skip_first.strip()
        if self.lr_cap and self.lr_steps.strip().isdecimal():
            changed["lr_steps"] = str(max(1, int(self.lr_steps) + older))
        if first.isdecimal() and int(first) < target.position:
            changed["skip_first"] = str(target.position)
        return self.model_copy(update=changed)


def form_of(action: Action) -> OrderForm:
    """The form as a proposal would fill it in."""
    found = {"verb": verb_of(action).value}
    for name in (f.name for f in fields(action)):
        match getattr(action, name):
            case BatchRange(first, end):
                found |= {f"{name}_first": str(first), f"{name}_last": str(end - 1)}
            case float(number):
                found[name] = f"{number:.6g}"
            case int(other) | str(other):
                found[name] = str(other)
    return OrderForm(**found)


def plan_shown(form: OrderForm, options: Options) -> Mapping[str, Any]:
    """What `form` would have done, and its price, where the run takes orders; raise what would be
    refused."""
    assert options.situation is not None
    verb, arguments = form.read()
    plan = planned(verb, arguments, options.situation)
    return {
        "words": capital(action_phrase(plan.action)),
        "warnings": plan.warnings,
        "cost": cost_of(plan.action, options.situation, options.policy),
        "changes": verb in CURES,  # the loss could tell of it
        "stops": verb is Verb.STOP,
        "button": VERB_WORDS[verb],
    }


def verbs_shown(
    path: str, form: OrderForm, proposed: OrderForm | None, options: OptionsBody
) -> list[dict[str, Any]]:
    """The verbs; one that cannot be done says why and leads nowhere."""
    return [
        {
            **each.model_dump(),
            "words": VERB_WORDS[each.verb],
            "chosen": each.verb == form.verb,
            "url": (
                proposed
                if proposed is not None and proposed.verb == each.verb
                else OrderForm(verb=each.verb)
            ).address(path),
        }
        for each in options.verbs
    ]


def targets_shown(
    path: str, form: OrderForm, proposed: OrderForm | None, targets: list[TargetOption],
    onset: int | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The proposed target, then those from before the onset, then the rest; of each the newest
    healthy ones first."""
    first = "" if proposed is None else proposed.target
    chosen = next((target.step for target in targets if target.name == form.target), None)
    last = MAX_STEP if onset is None else onset - 1
    ranked = sorted(
        targets, key=lambda t: (t.name != first, t.step > last, t.health is not Health.HEALTHY)
    )
    return [
        {
            **target.model_dump(),
            "chosen": target.name == form.target,
            "proposed": target.name == first,
            "url": form.with_target(
                target, 0 if chosen is None else chosen - target.step
            ).address(path),
        }
        for place, target in enumerate(ranked)
        if place < MOST_SHOWN or target.name == form.target
    ]  # fmt: skip


def _number(text: str, field: str) -> float:
    whole = KINDS[field] is int
    try:
        return int(text.replace(",", "")) if whole else float(text)
    except ValueError:
        what = "whole numbers, digits alone" if whole else "a number, 0.5 for half"
        raise Unprocessable(f"{field} takes {what}", "Write it anew", field=field) from None


router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
WITHIN_S: Final = 600.0
LISTED: Final = 10  # of what was done
PATH: Final = "/act/{project}/{name}"


class Asked(OrderForm):
    """What is filled in, and how it is shown."""

    review: bool = False  # with exactly what would be done


class SentOrder(OrderForm):
    """What is ordered, in place of the proposal that the page showed."""

    command: CommandNumber = 0
    revision: CommandNumber = 0
    reason: Annotated[str, StringConstraints(max_length=LONGEST_TEXT)] = ""
    expect: ExpectedEffect | Literal[""] = ""
    key: Text = ""


@router.get(PATH, summary="The page to act on a run")
def show_act(call: CallDep, run: RunDep, asked: Annotated[Asked, Query()]) -> Response:
    """What the run can go back to; every link chooses. With `review`,
    exactly what would be done and what it costs, and the button."""
    return _page(call, run, asked, review=asked.review)


@router.post(PATH, summary="Act on a run")
def do_act(call: CallDep, run: RunDep, sent: Annotated[SentOrder, Form()]) -> Response:
    """Orders it in the person's name, in place of the proposal that the page showed; then shows
    what becomes of it."""
    try:
        check_key(call.request, f"act {run}", sent.key)
        if not sent.reason.strip():
            raise Unprocessable(
                "An order needs a reason", "Say why: the record keeps it", field="reason"
            )
        verb, arguments = sent.read()
        ordered = Ordered(
            verb=verb, arguments=arguments, reason=sent.reason.strip(),
            expires_in_s=WITHIN_S, expect=sent.expect or None,
            command=sent.command or None, revision=sent.revision or None,
        )  # fmt: skip
        with call.services.snapshot() as connection:
            incident = open_incident(connection, run_named(connection, run).run_id)
        number = RUN_ITSELF if incident is None or verb not in OF_INCIDENT else incident.number
        made = order(call, IncidentId(run, number), ordered, call.way("the page"))
    except ServiceError as refusal:
        return _page(call, run, sent, review=True, refusal=refusal)
    there = act_path(run) if made.of_run else confirm_path(made)
    return RedirectResponse(there, status_code=303)


def _page(
    call: Call, run: RunId, asked: OrderForm, *, review: bool, refusal: ServiceError | None = None
) -> Response:
    plan, path, services = None, act_path(run), call.services
    with services.snapshot() as connection:
        shown = read_run(connection, run_named(connection, run).run_id, services.silent_after)
        options = read_options(connection, shown)
        history = _history(connection, run, options.run.run_id)
    body, row, blocked = options_body(options), options.waiting, why_no_orders(options)
    proposed = None if row is None else form_of(row.action)
    first = next((each.verb for each in body.verbs if each.possible), Verb.ROLLBACK)
    offered = None if proposed is None or proposed.verb == Verb.WATCH else proposed
    form = asked if asked.verb else offered or OrderForm(verb=first)
    if review and blocked is None:
        try:
            plan = plan_shown(form, options)
        except ServiceError as own:
            refusal = refusal or own
    targets = targets_shown(path, form, proposed, body.targets, options.onset_step)
    return answer(
        "act.html", page_of(services, call.caller), refusal=refusal, run=run, options=body,
        plan=plan, form=form, verbs=verbs_shown(path, form, proposed, body), targets=targets,
        chosen=next((t for t in body.targets if t.name == form.target), None), proposal=row,
        key=decider_key(call, f"act {run}"), back=form.address(path),
        blocked=blocked, reason=getattr(asked, "reason", ""), expect=getattr(asked, "expect", ""),
        silent=(shown.age_s or 0.0) > services.silent_after.total_seconds(), **history,
    )  # fmt: skip


def _history(connection: sql.Connection, run: RunId, key: UUID) -> dict[str, Any]:
    """What was done, and what is under way."""
    found, _ = read_interventions(connection, key, PageWanted(limit=LISTED))
    newest, _ = list_run_commands(connection, key, PageWanted(limit=3))
    ordered = [one for one in command_bodies(connection, newest, None) if one.state in FOLLOWED]
    return {
        "done": [intervention_body(one, run) for one in found],
        "ordered": [one.model_dump() for one in ordered],
        "following": any(one.state != "applied" for one in ordered),
        "incident": open_incident(connection, key),
    }
