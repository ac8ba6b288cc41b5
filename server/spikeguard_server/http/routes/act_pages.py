"""The page to act on a run and its open incident: choose, see what it does and costs, do it.

No scripts. GET shows and changes nothing, POST acts, with the key of the form. It is judged where
every order is: what changed meanwhile is shown, and asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final
from urllib.parse import urlencode
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, StringConstraints

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_core.diagnosis.incident_tracker import CURES
from spikeguard_core.policy.cost import cost_of
from spikeguard_core.policy.orders import TAKES, OrderRequest, order_request_of
from spikeguard_protocol import (
    RUN_ITSELF,
    Action,
    BatchRange,
    Health,
    IncidentId,
    ProtocolError,
    RunId,
    Verb,
)
from spikeguard_protocol.identity import MAX_STEP
from spikeguard_protocol.paths import act_path, confirm_path
from spikeguard_protocol.phrases import action_phrase
from spikeguard_server.errors import ServiceError, Unprocessable, WrongState
from spikeguard_server.http.bodies.incidents import command_bodies, cost_body, intervention_body
from spikeguard_server.http.dependencies import (
    CallerDep,
    RunDep,
    Services,
    ServicesDep,
    origin_of,
    person_of,
)
from spikeguard_server.http.pages.render import FOLLOWED, answer
from spikeguard_server.http.routes.commands import (
    MAX_WHY,
    CommandNumber,
    OptionsBody,
    TargetOption,
    options_body,
    order,
)
from spikeguard_server.http.routes.pages import check_key, decider_key, page_of
from spikeguard_server.identity.permissions import Caller
from spikeguard_server.ingest.decisions import Way
from spikeguard_server.ingest.orders import OF_INCIDENT, Ordered, SeenProposal, planned
from spikeguard_server.store.commands import list_run_commands
from spikeguard_server.store.incidents import open_incident
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.costs import Options, read_options
from spikeguard_server.store.reads.history import existing_run, read_interventions
from spikeguard_server.store.reads.runs import read_run

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


class Fields(BaseModel):
    """The form, as it was filled in."""

    verb: Text = ""
    to: Text = ""  # name of a target
    skip_first: Text = ""
    skip_last: Text = ""
    factor: Text = ""
    steps: Text = ""
    mitigation: Text = ""
    cap: Text = ""

    def filled(self) -> dict[str, str]:
        """What was filled in, by field."""
        return {name: text for name in Fields.model_fields if (text := getattr(self, name))}

    def address(self, path: str) -> str:
        """Where the page is shown with these fields."""
        return f"{path}?{urlencode(self.filled())}"

    def wanted(self) -> OrderRequest:
        """The order; raise `Unprocessable` for what is no number or no verb."""
        if self.verb not in set(Verb):
            raise Unprocessable("Choose what is to be done", "Use the buttons", field="verb")
        read: dict[str, Any] = {
            "target": self.to.strip() or None,
            "mitigation": self.mitigation.strip() or None,
        }
        takes = TAKES[Verb(self.verb)]
        read |= {name: _number(getattr(self, name), name) for name in {"factor", "cap"} & takes}
        if "steps" in takes:
            read["steps"] = _count(self.steps, "steps")
        if "skip" in takes:
            read["skip"] = self._skip()
        return OrderRequest(Verb(self.verb), **{name: read[name] for name in takes})

    def _skip(self) -> BatchRange | None:
        first, last = _count(self.skip_first, "skip"), _count(self.skip_last, "skip")
        if first is None and last is None:
            return None
        if first is None or last is None:
            raise Unprocessable("Batches have a first and a last one", "Give both", field="skip")
        try:
            return BatchRange(first, last + 1)
        except ProtocolError:
            raise Unprocessable(
                f"Batches {first:,} to {last:,} are none", "Give the first, then the last",
                field="skip",
            ) from None  # fmt: skip

    def with_target(self, target: TargetOption, older: int) -> Fields:
        """The same with another target, `older` steps before the one that is chosen. Batches that
        it has read cannot be left out behind it; a rate with a cap is lowered up to the same
        step."""
        changed, first = {"to": target.name}, self.skip_first.strip()
        if self.cap and self.steps.strip().isdecimal():
            changed["steps"] = str(max(1, int(self.steps) + older))
        if first.isdecimal() and int(first) < target.position:
            changed["skip_first"] = str(target.position)
        return self.model_copy(update=changed)


def fields_of(action: Action) -> Fields:
    """The form as a proposal would fill it in."""
    wanted = order_request_of(action)
    skip = wanted.skip
    return Fields(
        verb=wanted.verb.value,
        to=wanted.target or "",
        skip_first="" if skip is None else str(skip.first),
        skip_last="" if skip is None else str(skip.end - 1),
        factor="" if wanted.factor is None else f"{wanted.factor:.6g}",
        steps="" if wanted.steps is None else str(wanted.steps),
        mitigation=wanted.mitigation or "",
        cap="" if wanted.cap is None else f"{wanted.cap:.6g}",
    )


def first_fields(options: OptionsBody, proposed: Fields | None) -> Fields:
    """What the form begins with: the proposal, else the first thing that can be done."""
    if proposed is not None and proposed.verb != Verb.WATCH:
        return proposed
    return Fields(verb=next((each.verb for each in options.verbs if each.possible), Verb.ROLLBACK))


def plan_shown(fields: Fields, options: Options) -> Mapping[str, Any]:
    """What `fields` would have done, and its price; raise what would be refused."""
    if options.situation is None:
        raise WrongState(f"{options.run.id} has no attempt that trains", "Start the job again")
    plan = planned(fields.wanted(), options.situation)
    words, verb = action_phrase(plan.action), Verb(fields.verb)
    return {
        "words": f"{words[:1].upper()}{words[1:]}",
        "warnings": plan.warnings,
        "cost": cost_body(cost_of(plan.action, options.situation, options.policy), options.policy),
        "changes": verb in CURES,  # the loss could tell of it
        "stops": verb is Verb.STOP,
        "button": VERB_WORDS[verb],
    }


def verbs_shown(
    path: str, fields: Fields, proposed: Fields | None, options: OptionsBody
) -> list[dict[str, Any]]:
    """The verbs; one that cannot be done says why and leads nowhere."""
    return [
        {
            **each.model_dump(),
            "words": VERB_WORDS[each.verb],
            "chosen": each.verb == fields.verb,
            "url": (
                proposed
                if proposed is not None and proposed.verb == each.verb
                else Fields(verb=each.verb)
            ).address(path),
        }
        for each in options.verbs
    ]


def targets_shown(
    path: str, fields: Fields, proposed: Fields | None, targets: list[TargetOption],
    onset: int | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """The proposed target, then those from before the onset, then the rest; of each the newest
    healthy ones first."""
    first = "" if proposed is None else proposed.to
    chosen = next((target.step for target in targets if target.name == fields.to), None)
    last = MAX_STEP if onset is None else onset - 1
    ranked = sorted(
        targets, key=lambda t: (t.name != first, t.step > last, t.health is not Health.HEALTHY)
    )
    return [
        {
            **target.model_dump(),
            "chosen": target.name == fields.to,
            "proposed": target.name == first,
            "url": fields.with_target(
                target, 0 if chosen is None else chosen - target.step
            ).address(path),
        }
        for place, target in enumerate(ranked)
        if place < MOST_SHOWN or target.name == fields.to
    ]  # fmt: skip


def _count(text: str, field: str) -> int | None:
    plain = text.strip().replace(",", "")
    if not plain:
        return None
    if not plain.isascii() or not plain.isdigit() or int(plain) > MAX_STEP:
        raise Unprocessable(f"{field} takes whole numbers", "Give digits alone", field=field)
    return int(plain)


def _number(text: str, field: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise Unprocessable(
            f"{field} takes a number", "Write 0.5 for half the learning rate", field=field
        ) from None


router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
WITHIN_S: Final = 600.0
LISTED: Final = 10  # of what was done
PATH: Final = "/act/{project}/{name}"


class Asked(Fields):
    """What is filled in, and how it is shown."""

    review: bool = False  # with exactly what would be done


class Sent(Fields):
    """What is ordered, in place of the proposal that the page showed."""

    command: CommandNumber = 0
    revision: CommandNumber = 0
    reason: Annotated[str, StringConstraints(max_length=MAX_WHY)] = ""
    expect: Text = ""
    key: Text = ""


@router.get(PATH, summary="The page to act on a run")
def show_act(
    services: ServicesDep, caller: CallerDep, request: Request, run: RunDep,
    asked: Annotated[Asked, Query()],
) -> Response:  # fmt: skip
    """What the run can go back to; every link chooses. With `review`,
    exactly what would be done and what it costs, and the button."""
    return _page(services, caller, request, run, asked, review=asked.review)


@router.post(PATH, summary="Act on a run")
def do_act(
    services: ServicesDep, caller: CallerDep, request: Request, run: RunDep,
    sent: Annotated[Sent, Form()],
) -> Response:  # fmt: skip
    """Orders it in the person's name, in place of the proposal that the page showed; then shows
    what becomes of it."""
    try:
        check_key(request, f"act {run}", sent.key)
        if not sent.reason.strip():
            raise Unprocessable(
                "An order needs a reason", "Say why: the record keeps it", field="reason"
            )
        ordered = Ordered(sent.wanted(), sent.reason.strip(), WITHIN_S, _expected(sent.expect))
        with services.snapshot() as connection:
            incident = open_incident(connection, existing_run(connection, run))
        number = RUN_ITSELF if incident is None or sent.verb not in OF_INCIDENT else incident.number
        made = order(
            services, IncidentId(run, number), ordered,
            person_of(caller), Way("the page", origin_of(request)),
            seen=SeenProposal(sent.command, sent.revision) if sent.command else None,
        )  # fmt: skip
    except ServiceError as refusal:
        return _page(services, caller, request, run, sent, review=True, refusal=refusal)
    there = act_path(run) if made.of_run else confirm_path(made)
    return RedirectResponse(there, status_code=303)


def _expected(text: str) -> ExpectedEffect | None:
    if text and text not in set(ExpectedEffect):
        known = ", ".join(ExpectedEffect)
        raise Unprocessable(f"One expects {known}, or nothing", "Choose", field="expect")
    return ExpectedEffect(text) if text else None


def _page(
    services: Services, caller: Caller, request: Request, run: RunId, asked: Fields, *,
    review: bool, refusal: ServiceError | None = None,
) -> Response:  # fmt: skip
    plan, path = None, act_path(run)
    with services.snapshot() as connection:
        shown = read_run(connection, existing_run(connection, run), services.silent_after)
        options = read_options(connection, shown)
        history = _history(connection, run, options.run.run_id)
    body, row = options_body(options), options.waiting
    proposed = None if row is None else fields_of(row.action)
    fields = asked if asked.verb else first_fields(body, proposed)
    if review:
        try:
            plan = plan_shown(fields, options)
        except ServiceError as own:
            refusal = refusal or own
    targets = targets_shown(path, fields, proposed, body.targets, options.onset_step)
    return answer(
        "act.html", page_of(services, caller), refusal=refusal, run=run, options=body, plan=plan,
        fields=fields, verbs=verbs_shown(path, fields, proposed, body), targets=targets,
        chosen=next((t for t in body.targets if t.name == fields.to), None), proposal=row,
        key=decider_key(request, caller, f"act {run}"), back=fields.address(path),
        halted=options.policy.halted, gone=options.situation is None,
        reason=getattr(asked, "reason", ""), expect=getattr(asked, "expect", ""),
        silent=(shown.age_s or 0.0) > services.silent_after.total_seconds(), **history,
    )  # fmt: skip


def _history(connection: sql.Connection, run: RunId, key: UUID) -> dict[str, Any]:
    """What was done, and what is under way."""
    found, _ = read_interventions(connection, key, PageWanted(LISTED))
    newest, _ = list_run_commands(connection, key, PageWanted(3))
    ordered = [one for one in command_bodies(connection, newest, None) if one.state in FOLLOWED]
    return {
        "done": [intervention_body(one, run) for one in found],
        "ordered": [one.model_dump() for one in ordered],
        "following": any(one.state != "applied" for one in ordered),
        "incident": open_incident(connection, key),
    }
