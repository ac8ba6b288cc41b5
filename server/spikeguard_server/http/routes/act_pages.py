"""The page to act on a run and its open incident: choose, see what it does and costs, do it.

No scripts. GET shows and changes nothing, POST acts, with the key of the form. It is judged where
every order is: what changed meanwhile is shown, and asked again.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import StringConstraints

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_protocol import RUN_ITSELF, IncidentId, RunId
from spikeguard_protocol.paths import act_path, confirm_path
from spikeguard_server.errors import Forbidden, ServiceError, Unprocessable
from spikeguard_server.http.bodies.incidents import command_bodies, intervention_body
from spikeguard_server.http.bodies.orders import MAX_WHY, CommandNumber, options_body
from spikeguard_server.http.dependencies import (
    CallerDep,
    RunDep,
    Services,
    ServicesDep,
    origin_of,
    person_of,
    session_secret,
)
from spikeguard_server.http.pages.act import (
    Fields,
    Text,
    fields_of,
    first_fields,
    plan_shown,
    targets_shown,
    verbs_shown,
)
from spikeguard_server.http.pages.render import FOLLOWED, answer
from spikeguard_server.http.routes.commands import order
from spikeguard_server.http.routes.pages import page_of
from spikeguard_server.identity.permissions import DECIDERS, Caller, form_key, same_key
from spikeguard_server.ingest.decisions import Way
from spikeguard_server.ingest.orders import OF_INCIDENT, Ordered, SeenProposal
from spikeguard_server.store.commands import list_run_commands
from spikeguard_server.store.incidents import open_incident
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.costs import read_options
from spikeguard_server.store.reads.history import existing_run, read_interventions
from spikeguard_server.store.reads.runs import read_run

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
WITHIN_S: Final = 600.0
LISTED: Final = 10  # of what was done
PATH: Final = "/act/{project}/{name}"


class Asked(Fields):
    """What is filled in, and how it is shown."""

    review: bool = False  # with exactly what would be done
    all: bool = False  # every target


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
    return _page(services, caller, request, run, asked, review=asked.review, all=asked.all)


@router.post(PATH, summary="Act on a run")
def do_act(
    services: ServicesDep, caller: CallerDep, request: Request, run: RunDep,
    sent: Annotated[Sent, Form()],
) -> Response:  # fmt: skip
    """Orders it in the person's name, in place of the proposal that the page showed; then shows
    what becomes of it."""
    try:
        if not same_key(sent.key, _key(request, run)):
            raise Forbidden(
                "This form is not from this page, or your session is another", "Look again"
            )
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


def _key(request: Request, run: RunId) -> str:
    return form_key(session_secret(request) or "", f"act {run}")


def _page(
    services: Services, caller: Caller, request: Request, run: RunId, asked: Fields, *,
    review: bool, all: bool = False, refusal: ServiceError | None = None,
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
    targets = targets_shown(path, fields, proposed, body.targets, options.onset_step, all=all)
    may_act = caller.role in DECIDERS and caller.person is not None
    return answer(
        "act.html", page_of(services, caller), refusal=refusal, run=run, options=body, plan=plan,
        fields=fields, verbs=verbs_shown(path, fields, proposed, body), targets=targets,
        chosen=next((t for t in body.targets if t.name == fields.to), None), proposal=row,
        more=fields.address(path, all="true") if len(targets) < len(body.targets) else "",
        key=_key(request, run) if may_act else "", back=fields.address(path),
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
