"""The pages on an incident: as it stands, the one that decides on a command of it, and the same by
an approval link.

No scripts. GET shows and spends nothing, however often a mail scanner or a chat's preview looks;
POST acts, in a person's name, by a link once. A page looks again by itself while there is something
to follow, and never while somebody may be typing.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Final

import sqlalchemy as sql
from fastapi import APIRouter, Path, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from spikeguard_core.diagnosis.cause.layers import layer_map
from spikeguard_core.diagnosis.evidence import contrast, onset_batch, worst_sequence
from spikeguard_core.policy.finding import diagnose
from spikeguard_core.policy.remedies import DATA
from spikeguard_protocol import (
    Cause,
    CommandId,
    CommandState,
    IncidentId,
    IncidentState,
    Outcome,
    Signal,
)
from spikeguard_protocol.paths import act_path
from spikeguard_server.access.person_names import BY_LINK, read_person
from spikeguard_server.entities import IncidentRow
from spikeguard_server.errors import (
    NameNotProven,
    NotFound,
    ServiceError,
    Unprocessable,
    WrongState,
)
from spikeguard_server.http.bodies.incidents import incident_detail
from spikeguard_server.http.dependencies import (
    Call,
    CallDep,
    CommandDep,
    IncidentDep,
    Services,
    ServicesDep,
    visitor_of,
)
from spikeguard_server.http.pages.render import FOLLOWED, answer, cells_of
from spikeguard_server.http.routes.incidents import get_postmortem
from spikeguard_server.http.routes.pages import (
    PageForm,
    Sent,
    check_key,
    decider_key,
    key_of,
    page_of,
)
from spikeguard_server.identity.actors import Actor, ActorKind, KnownBy
from spikeguard_server.identity.permissions import DECIDERS, PROVEN
from spikeguard_server.ingest.decisions import Way, decide
from spikeguard_server.ingest.responses import (
    acknowledge,
    assign,
    comment,
    take_back_acknowledgement,
)
from spikeguard_server.notify.facts import incident_image, picture_of, read_spike
from spikeguard_server.notify.message import brief
from spikeguard_server.notify.upkeep import silence_once, silent_for_s
from spikeguard_server.report.render import ReportFormat
from spikeguard_server.store.incidents import read_incident
from spikeguard_server.store.policies import policy_of
from spikeguard_server.store.reads.runs import read_targets, read_told
from spikeguard_server.store.runs import attempts_named, run_row
from spikeguard_server.store.samples import read_batches, read_layers
from spikeguard_server.store.tokens import LinkRow, read_link

router = APIRouter(tags=["pages"], default_response_class=HTMLResponse)
SNOOZE_S: Final = 900.0
LAYER_STEPS: Final = 16  # before the onset and from it on, that the first view draws
TARGETS: Final = 4  # of the newest, that it lists beside those that are kept for a decision
WRITTEN: Final = frozenset({"assign", "comment"})  # with something that was typed


BLAMES_BATCH: Final = DATA | {Cause.UNKNOWN}


@router.get("/incident/{project}/{name}/{number}", summary="An incident at a glance")
def show_incident(call: CallDep, incident: IncidentDep, write: bool = False) -> Response:
    """What happened, what is proposed, what it and waiting cost, who has it, and the curve. It
    looks again by itself until the incident is closed; with `write`, which shows the forms for a
    comment and an assignee, it does not."""
    return _incident(call, incident, write=write)


@router.get("/incident/{project}/{name}/{number}/postmortem", summary="A post-mortem to read")
async def show_postmortem(services: ServicesDep, incident: IncidentDep) -> Response:
    """The post-mortem of a closed incident as HTML, for whoever is signed in in a browser."""
    return await get_postmortem(services, incident, ReportFormat.HTML)


@router.post("/incident/{project}/{name}/{number}", summary="Respond to an incident")
def do_incident(call: CallDep, incident: IncidentDep, sent: Sent) -> Response:
    """Acknowledge, assign, comment, or snooze: then nobody is told of it for 15 minutes. What is
    proposed waits, and expires as before."""
    try:
        check_key(call.request, _form(incident), sent.key)
        _respond(call, incident, sent)
    except ServiceError as refusal:
        return _incident(call, incident, refusal, write=sent.verdict in WRITTEN)
    return RedirectResponse(call.request.url.path, status_code=303)


@router.get("/confirm/{project}/{name}/{number}/{command}", summary="The page that decides")
def show_confirm(call: CallDep, command: CommandDep, write: bool = False) -> Response:
    """One command with its incident; looking changes nothing. It looks again by itself while the
    command is under way; with `write`, which shows the form that takes an approval back, it does
    not."""
    return _confirmation(call, command, write=write)


@router.post("/confirm/{project}/{name}/{number}/{command}", summary="Approve or reject")
def do_confirm(call: CallDep, command: CommandDep, sent: Sent) -> Response:
    """Acts in the person's name, then shows what became of it."""
    try:
        check_key(call.request, _form(command), sent.key)
        _decide(call, command, sent, sent.revision, call.caller.actor, call.way("the page"))
    except ServiceError as refusal:
        return _confirmation(call, command, refusal, write=sent.verdict == "reject")
    return RedirectResponse(call.request.url.path, status_code=303)


def _decide(
    call: Call, command: CommandId, sent: PageForm, revision: int, person: Actor, way: Way
) -> None:
    """A snooze decides nothing, and spends no link."""
    if sent.verdict == "snooze":
        snooze(call.services, command.incident, person)
    else:
        decide(
            call.services.engine, command, sent.verdict, revision, person, sent.reason, way,
            silent_after=call.services.silent_after,
        )  # fmt: skip


def _respond(call: Call, incident: IncidentId, sent: PageForm) -> None:
    by = call.caller.actor
    if sent.verdict == "snooze":
        snooze(call.services, incident, by)
        return
    with call.services.engine.begin() as connection:
        match sent.verdict:
            case "acknowledge":
                acknowledge(connection, incident, by)
            case "unacknowledge":
                take_back_acknowledgement(connection, incident, by)
            case "take":
                assign(connection, incident, by, by)
            case "assign":
                assign(connection, incident, sent.assignee or None, by)
            case "comment":
                comment(connection, incident, sent.text, by)
            case other:
                raise Unprocessable(f"There is no {other}", "Use the buttons", field="verdict")


def snooze(services: Services, incident: IncidentId, person: str) -> None:
    """Tell nobody of `incident` for a while; asked again meanwhile, it stays as it is."""
    with services.engine.begin() as connection:
        read_incident(connection, incident)
        silence_once(connection, incident, SNOOZE_S, "snoozed from the page", person)


def _form(shown: IncidentId | CommandId) -> str:
    return f"confirm {shown}"


def _incident(
    call: Call, incident: IncidentId, refusal: ServiceError | None = None, *, write: bool
) -> Response:
    services, key = call.services, decider_key(call, _form(incident))
    return answer(
        "incident.html", page_of(services, call.caller), refusal=refusal, key=key,
        write=write and bool(key), **_see(services, incident, closely=True),
    )  # fmt: skip


def _confirmation(
    call: Call, command: CommandId, refusal: ServiceError | None = None, *, write: bool = False,
    link: LinkRow | None = None,
) -> Response:  # fmt: skip
    """The page that decides on `command`; by a `link`, of its revision alone and once, it asks who
    they are where it knows nobody. An approved command is followed until it is judged; to `write`
    is to take it back."""
    services, key = call.services, key_of(call.request, _form(command) if link is None else link.id)
    page = page_of(services, call.caller)
    if link is not None:
        page = page_of(services, None, _person_by_link(call, link))
    facts = _see(services, command.incident)
    incident = facts["incident"]
    shown = next((each for each in incident["commands"] if each["number"] == command.number), None)
    if shown is None:
        raise NotFound(f"There is no command {command}", "Open it from its incident")
    takes_back = write and shown["state"] == CommandState.APPROVED
    follows = shown["state"] in FOLLOWED and incident["state"] != IncidentState.CLOSED
    return answer(
        "confirm.html", page, refusal=refusal, key=key, command=shown,
        spent=link is not None and link.used_at is not None,
        outdated=link is not None and not _same_offer(shown, link.revision),
        takes_back=takes_back, follows=follows and not takes_back, **facts,
    )  # fmt: skip


def _same_offer(shown: Mapping[str, Any], revision: int) -> bool:
    """Whether `revision` of a command did what is proposed now."""
    seen = next((one for one in shown["revisions"] if one["number"] == revision), None)
    return revision == shown["revision"] or (
        seen is not None and seen["arguments"] == shown["arguments"]
    )


def _look_into(connection: sql.Connection, row: IncidentRow) -> dict[str, Any]:
    """What was found out about it, for its first view."""
    key, place, onset = row.run_id, row.place, row.incident.onset_step
    first, run = row.incident.first_layer, run_row(connection, key)
    assert run is not None
    batch = None
    if diagnose(row.incident).remedy.diagnosis in BLAMES_BATCH:
        batch = onset_batch(read_batches(connection, key, place, onset), onset)
    signal = Signal.GRAD_NORM.value if first is None else first.signal
    around = (onset - LAYER_STEPS, LAYER_STEPS), (onset - LAYER_STEPS, 2 * LAYER_STEPS)
    found = layer_map(read_layers(connection, key, place, *around, signal), onset, first=first)
    targets = read_targets(connection, run)
    [attempt] = attempts_named(connection, key, {row.attempt})
    return {
        "batch": batch,
        "batch_worst": None if batch is None else worst_sequence(batch),
        "batch_contrast": None if batch is None else contrast(batch.histogram),
        "layers": None if found is None else cells_of(found),
        "targets": [t for place, t in enumerate(targets) if t.protected or place < TARGETS],
        "links": attempt.links,
    }


def _see(services: Services, incident: IncidentId, *, closely: bool = False) -> dict[str, Any]:
    """The incident as it stands; drawn once nothing more is asked of the database."""
    with services.snapshot() as connection:
        row = read_incident(connection, incident)
        key, picture = row.run_id, picture_of(connection, row)
        told, policy = read_told(connection, key), policy_of(connection, row.run.project, key)
        concerns = row.incident.outcome in (None, Outcome.RUN_ENDED)
        facts = {
            "incident": incident_detail(connection, row).model_dump(),
            "lines": brief(read_spike(connection, row)),  # as the messages say it
            "picture_label": picture.label,
            "halted": policy.halted,
            "job": told.job if concerns else None,
            "snoozed_s": silent_for_s(connection, incident),
            "age_s": told.age_s,
            "silent": told.age_s > services.silent_after.total_seconds(),
            "ended": told.state == "ended",
            "act": act_path(row.run),
            **(_look_into(connection, row) if closely else {}),
        }
    drawn = incident_image(picture)
    address = f"data:image/svg+xml;base64,{b64encode(drawn).decode()}"
    return {**facts, "picture": address if drawn else ""}


Token = Annotated[str, Path(min_length=20, max_length=1000)]


@router.get("/approve/{token}", summary="The page that a link leads to")
def show_link(call: CallDep, token: Token) -> Response:
    """One command with its incident; looking changes nothing and spends nothing."""
    link = _read_link(call, token)
    return _confirmation(call, link.command, link=link)


@router.post("/approve/{token}", summary="Decide with a link")
def decide_by_link(call: CallDep, token: Token, sent: Sent) -> Response:
    """Decides on the revision that the link was made for, once, and shows what became of it.

    In the name of who is signed in only by the form that they were shown: another page of this host
    could send one along with their cookie.
    """
    link = _read_link(call, token)
    try:
        if link.used_at is not None:
            raise WrongState(f"This link was used by {link.used_by}", "It is good once")
        person = _person_by_link(call, link) or _unsigned(read_person(sent.name))
        if person.known_by is not KnownBy.LINK:
            check_key(call.request, link.id, sent.key)
        if call.services.named_only and person.known_by not in PROVEN:
            raise NameNotProven
        way = call.way(f"a link of channel {link.channel}", link.id)
        _decide(call, link.command, sent, link.revision, person, way)
    except ServiceError as refusal:
        return _confirmation(call, link.command, refusal, link=link)
    return RedirectResponse(call.request.url.path, status_code=303)


def _read_link(call: Call, token: str) -> LinkRow:
    with call.services.snapshot() as connection:
        return read_link(connection, token)


def _person_by_link(call: Call, link: LinkRow) -> Actor | None:
    """Who decides: who is signed in and may decide here, else the person whose channel it is."""
    caller = visitor_of(call.services, call.request)
    here = (None, link.command.incident.run.project)
    if caller and caller.person and caller.role in DECIDERS and caller.project in here:
        return caller.actor
    return None if link.person is None else _unsigned(link.person)


def _unsigned(name: str) -> Actor:
    """A name that no login stands behind."""
    return Actor(f"{name}{BY_LINK}", ActorKind.PERSON, known_by=KnownBy.LINK)
