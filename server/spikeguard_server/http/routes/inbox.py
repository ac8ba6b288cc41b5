"""The inbox: what waits for people across runs, as a page without scripts.

GET shows, POST acts. The page looks again by itself, and never while somebody may be typing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sql
from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import ValidationError

from spikeguard_protocol.phrases import order_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS
from spikeguard_server.access.person_names import same_name
from spikeguard_server.entities import CommandRow
from spikeguard_server.errors import ServiceError, Unprocessable
from spikeguard_server.http.bodies.incidents import (
    CommandBody,
    IncidentBody,
    command_bodies,
    incident_bodies,
)
from spikeguard_server.http.dependencies import Call, CallDep
from spikeguard_server.http.pages.render import answer
from spikeguard_server.http.routes.pages import PageForm, Sent, check_key, decider_key, page_of
from spikeguard_server.http.routes.project_settings import SwitchWanted, throw
from spikeguard_server.identity.permissions import TABLE, check_access
from spikeguard_server.store.audit import MAX_REASON
from spikeguard_server.store.policies import read_switches
from spikeguard_server.store.reads.incidents import (
    failed_commands,
    incidents_by_key,
    incidents_to_decide,
    incidents_to_look_at,
)
from spikeguard_server.store.situations import read_pace

SHOWN: Final = 20  # of each kind
DECISION, FAILED, YOURS, NOBODYS = "decision", "failed command", "yours", "not acknowledged"


@dataclass(frozen=True, slots=True)
class InboxItem:
    """One thing that waits. An incident stands in the inbox once, for what presses most."""

    waits: str  # for what
    title: str  # what is asked of somebody, in a line
    since: datetime | None
    incident: Mapping[str, Any] | None = None  # an `IncidentBody`
    command: Mapping[str, Any] | None = None  # a `CommandBody`, that came to nothing


def read_inbox(
    connection: sql.Connection, person: str | None, project: str | None
) -> tuple[list[InboxItem], bool]:
    """What waits now for `person` in `project` (None: in every one), and whether there is more."""
    one_more = SHOWN + 1
    deciding = incidents_to_decide(connection, project, one_more)
    failed = failed_commands(connection, project, one_more, of_runs=False)
    not_done = failed_commands(connection, project, one_more, of_runs=True)
    looks = incidents_to_look_at(connection, project, person, one_more)
    items = [
        InboxItem(
            DECISION, f"{one.id}: decide: {_order(one.proposal)}", one.proposal.proposed_at,
            one.model_dump(),
        )
        for one in incident_bodies(connection, deciding[:SHOWN])
        if one.proposal is not None  # else it was decided meanwhile
    ]  # fmt: skip
    items += _failures(connection, [*failed[:SHOWN], *not_done[:SHOWN]])
    named = {item.incident["id"] for item in items if item.incident is not None}
    rest = [row for row in looks[:SHOWN] if str(row.id) not in named]
    items += [_look(body, person) for body in incident_bodies(connection, rest)]
    return items, any(len(found) > SHOWN for found in (deciding, failed, not_done, looks))


def _failures(connection: sql.Connection, failed: Sequence[CommandRow]) -> Iterator[InboxItem]:
    found = incidents_by_key(connection, [(one.run_id, one.incident) for one in failed])
    bodies = {body.id: body for body in incident_bodies(connection, list(found.values()))}
    for row in failed:
        incident = found.get((row.run_id, row.incident))
        pace = None if incident is None else read_pace(connection, incident)
        [command] = command_bodies(connection, [row], pace)
        said = f" ({row.result})" if row.id.of_run and row.result else ""
        yield InboxItem(
            FAILED,
            f"{row.id}: {COMMAND_STATE_WORDS[row.state]}: {_order(command)}{said}",
            row.finished_at or row.decided_at,
            None if incident is None else bodies[str(incident.id)].model_dump(),
            command.model_dump(),
        )


def _look(incident: IncidentBody, person: str | None) -> InboxItem:
    mine = person is not None and same_name(incident.assignee or "", person)
    title = f"{incident.id}: {'yours' if mine else 'nobody has it'}: {incident.title}"
    waits = YOURS if mine else NOBODYS
    return InboxItem(waits, title, incident.opened_at, incident.model_dump())


def _order(command: CommandBody) -> str:
    return order_phrase(command.verb, command.arguments, brief=True)


router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)


@router.get("/inbox", summary="What waits for people")
def show_inbox(call: CallDep, write: bool = False) -> Response:
    """Kill switches that are on; proposals to decide, with price and deadline; commands that came
    to nothing; incidents that are yours, and those that nobody acknowledged. With `write`, which
    shows the switch's form, it does not look again by itself."""
    return _page(call, write=write)


@router.post("/inbox", summary="Throw or lift a kill switch")
def do_inbox(call: CallDep, sent: Sent) -> Response:
    """Whoever may decide throws it, an admin lifts it; the record keeps the reason."""
    try:
        check_key(call.request, "inbox", sent.key)
        _switch(call, sent)
    except ServiceError as refusal:
        return _page(call, write=True, refusal=refusal)
    return RedirectResponse("/inbox", status_code=303)


def _switch(call: Call, sent: PageForm) -> None:
    verdict = sent.verdict
    if verdict not in ("halt", "resume"):
        raise Unprocessable("Here one can halt and resume", "Use the buttons", field="verdict")
    rule = TABLE["POST", f"/v1/policy/{verdict}"]
    check_access(call.caller, rule, named_only=call.services.named_only)
    try:
        wanted = SwitchWanted(project=sent.project, reason=sent.reason.strip())
    except ValidationError:
        raise Unprocessable(
            f"The switch needs a project and a reason of 1 to {MAX_REASON} characters",
            "Say why: the record keeps it",
            field="reason",
        ) from None
    throw(call, wanted, halted=verdict == "halt")


def _page(call: Call, *, write: bool, refusal: ServiceError | None = None) -> Response:
    caller = call.caller
    with call.services.snapshot() as connection:
        items, more = read_inbox(connection, caller.person, caller.project)
        switches = read_switches(connection, caller.project)
    return answer(
        "inbox.html", page_of(call.services, caller), refusal=refusal, items=items, more=more,
        switches=switches, write=write, key=decider_key(call, "inbox"),
    )  # fmt: skip
