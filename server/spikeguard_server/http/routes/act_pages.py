"""The page to act on a run and its open incident: choose, see what it does and costs, do it.

Law: no scripts. GET shows and changes nothing, POST acts, with the key of the form. It is judged
where every order is: what changed meanwhile is shown, and asked again.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Final
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Depends, Form, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from spikeguard_core.diagnosis.change_effect import ExpectedEffect
from spikeguard_protocol import RUN_ITSELF, CommandId, IncidentId, RunId
from spikeguard_protocol.paths import act_path, confirm_path
from spikeguard_server.errors import Forbidden, ServiceError, Unprocessable
from spikeguard_server.http.bodies.incidents import command_bodies
from spikeguard_server.http.bodies.interventions import intervention_body
from spikeguard_server.http.bodies.options import options_body
from spikeguard_server.http.bodies.orders import MAX_WHY
from spikeguard_server.http.dependencies import (
    CallerDep,
    RunDep,
    Services,
    ServicesDep,
    origin_of,
    person_of,
    session_secret,
)
from spikeguard_server.http.pages import act_page
from spikeguard_server.http.pages.act_fields import Fields, fields_of
from spikeguard_server.http.pages.act_view import (
    ActForm,
    first_fields,
    of_incident,
    plan_view,
    proposal_shown,
    targets_shown,
    verbs_shown,
)
from spikeguard_server.http.pages.render import FOLLOWED
from spikeguard_server.http.routes.commands import order
from spikeguard_server.http.routes.pages import page_of
from spikeguard_server.identity.permissions import DECIDERS, Caller, form_key, same_key
from spikeguard_server.ingest.decisions import Way
from spikeguard_server.ingest.orders import Ordered, SeenProposal
from spikeguard_server.store.commands import list_run_commands
from spikeguard_server.store.incidents import open_incident
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.costs import Options, read_options
from spikeguard_server.store.reads.history import existing_run, read_interventions
from spikeguard_server.store.reads.runs import read_run

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
WITHIN_S: Final = 600.0
LISTED: Final = 10  # of what was done
PATH: Final = "/act/{project}/{name}"
_Asked = Annotated[str, Query(max_length=200)]
_Sent = Annotated[str, Form(max_length=200)]


def _asked(
    verb: _Asked = "", to: _Asked = "", skip_first: _Asked = "", skip_last: _Asked = "",
    factor: _Asked = "", steps: _Asked = "", mitigation: _Asked = "", cap: _Asked = "",
) -> Fields:  # fmt: skip
    return Fields(verb, to, skip_first, skip_last, factor, steps, mitigation, cap)


def _sent(
    verb: _Sent = "", to: _Sent = "", skip_first: _Sent = "", skip_last: _Sent = "",
    factor: _Sent = "", steps: _Sent = "", mitigation: _Sent = "", cap: _Sent = "",
) -> Fields:  # fmt: skip
    return Fields(verb, to, skip_first, skip_last, factor, steps, mitigation, cap)


@router.get(PATH, summary="The page to act on a run")
def show_act(
    services: ServicesDep, caller: CallerDep, request: Request, run: RunDep,
    fields: Annotated[Fields, Depends(_asked)], review: bool = False, all: bool = False,
) -> Response:  # fmt: skip
    """What the run can go back to; every link chooses. With `review`,
    exactly what would be done and what it costs, and the button."""
    return _page(services, caller, request, run, fields, review=review, all=all)


@router.post(PATH, summary="Act on a run")
def do_act(
    services: ServicesDep, caller: CallerDep, request: Request, run: RunDep,
    fields: Annotated[Fields, Depends(_sent)],
    command: Annotated[int, Form(ge=0, le=2**31 - 1)] = 0,
    revision: Annotated[int, Form(ge=0, le=2**31 - 1)] = 0,
    reason: Annotated[str, Form(max_length=MAX_WHY)] = "",
    expect: _Sent = "",
    key: Annotated[str, Form(max_length=100)] = "",
) -> Response:  # fmt: skip
    """Orders it in the person's name, in place of the proposal that the page showed; then shows
    what becomes of it."""
    try:
        if not same_key(key, _key(request, run)):
            raise Forbidden(
                "This form is not from this page, or your session is another", "Look again"
            )
        ordered = Ordered(
            fields.wanted(), _reason(reason), WITHIN_S, _expected(expect)
        )  # fmt: skip
        seen = SeenProposal(command, revision) if command else None
        made = _order(services, caller, request, run, ordered, seen)
    except ServiceError as refusal:
        return _page(
            services, caller, request, run, fields, review=True, refusal=refusal,
            typed=(reason, expect),
        )  # fmt: skip
    there = act_path(run) if made.of_run else confirm_path(made)
    return RedirectResponse(there, status_code=303)


def _order(
    services: Services, caller: Caller, request: Request, run: RunId, ordered: Ordered,
    seen: SeenProposal | None,
) -> CommandId:  # fmt: skip
    verb, by, way = ordered.wanted.verb, person_of(caller), Way("the page", origin_of(request))
    with services.snapshot() as connection:
        options = _options(connection, services, run)
    number = options.incident if of_incident(verb, options) else RUN_ITSELF
    return order(services, IncidentId(run, number or RUN_ITSELF), ordered, by, way, seen=seen)


def _reason(text: str) -> str:
    if not text.strip():
        raise Unprocessable(
            "An order needs a reason", "Say why: the record keeps it", field="reason"
        )
    return text.strip()


def _expected(text: str) -> ExpectedEffect | None:
    if not text:
        return None
    if text not in set(ExpectedEffect):
        raise Unprocessable(
            f"One expects of the loss {', '.join(ExpectedEffect)}, or nothing",
            "Choose",
            field="expect",
        )
    return ExpectedEffect(text)


def _key(request: Request, run: RunId) -> str:
    return form_key(session_secret(request) or "", f"act {run}")


def _options(connection: sql.Connection, services: Services, run: RunId) -> Options:
    row = read_run(connection, existing_run(connection, run), services.silent_after)
    return read_options(connection, row)


def _page(
    services: Services, caller: Caller, request: Request, run: RunId, asked: Fields, *,
    review: bool = False, all: bool = False, refusal: ServiceError | None = None,
    typed: tuple[str, str] = ("", ""),
) -> Response:  # fmt: skip
    with services.snapshot() as connection:
        shown = read_run(connection, existing_run(connection, run), services.silent_after)
        options = read_options(connection, shown)
        body, row = options_body(options), options.waiting
        proposed = None if row is None else fields_of(row.action)
        fields = asked if asked.verb else first_fields(body, proposed)
        form = ActForm(act_path(run), fields, proposed, all)
        plan, refusal = _plan(fields, options, refusal) if review else (None, refusal)
        targets = targets_shown(form, body, options.onset_step)
        facts = _history(connection, run, options.run.run_id)
    may_act = caller.role in DECIDERS and caller.person is not None
    html = act_page(
        page_of(services, caller), refusal=refusal, run=run, options=body, form=form, plan=plan,
        fields=asdict(fields), chosen_verb=fields.verb, verbs=verbs_shown(form, body),
        targets=targets, chosen=form.chosen(body), proposal=proposal_shown(options),
        more=fields.address(form.path, all="true") if len(targets) < len(body.targets) else "",
        key=_key(request, run) if may_act else "", back=fields.address(form.path),
        halted=options.policy.halted, gone=options.situation is None, reason=typed[0],
        expect=typed[1], silent=(shown.age_s or 0.0) > services.silent_after.total_seconds(),
        **facts,
    )  # fmt: skip
    return HTMLResponse(html, status_code=refusal.status if refusal else 200)


def _plan(fields: Fields, options: Options, refusal: ServiceError | None) -> tuple[Any, Any]:
    """What would be done, and why not if it cannot be."""
    try:
        return plan_view(fields, options), refusal
    except ServiceError as own:
        return None, refusal or own


def _history(connection: sql.Connection, run: RunId, key: UUID) -> dict[str, Any]:
    """What was done, and what is under way."""
    incident = open_incident(connection, key)
    found, _ = read_interventions(connection, key, PageWanted(LISTED))
    done = [intervention_body(one, run) for one in found]
    newest, _ = list_run_commands(connection, key, PageWanted(3))
    ordered = [one.model_dump() for one in command_bodies(connection, newest, None)]
    ordered = [one for one in ordered if one["state"] in FOLLOWED]
    return {
        "done": [one.model_dump() for one in done],
        "ordered": ordered,
        "following": any(one["state"] != "applied" for one in ordered),
        "incident": None if incident is None else {
            "id": str(incident.id), "number": incident.number
        },
    }  # fmt: skip
