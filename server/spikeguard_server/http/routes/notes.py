"""Notes of a run: changes that people tell of, and those that the server found."""

from __future__ import annotations

from fastapi import APIRouter

from spikeguard_server.http.bodies.notes import NoteList, NoteWanted, note_body
from spikeguard_server.http.bodies.run_shapes import NoteBody
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    RunDep,
    ServicesDep,
    person_of,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.ingest.notes import ToldChange, tell_note
from spikeguard_server.store.notes import read_note, read_notes
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.history import existing_run

router = APIRouter(tags=["runs"])
PATH = "/v1/runs/{project}/{name}/notes"


@router.get(PATH, summary="Changes that nobody ordered here", response_model=NoteList)
def get_notes(
    services: ServicesDep, run: RunDep, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """What people told of, and settings that an attempt began with otherwise, each with its effect
    on the loss once it is judged. Newest first."""
    page = PageWanted(limit, cursor)
    with services.snapshot() as connection:
        found, more = read_notes(connection, existing_run(connection, run), page)
    return JsonReply(NoteList(items=[note_body(row) for row in found], next_cursor=more))


@router.post(PATH, summary="Tell of a change", response_model=NoteBody, status_code=201)
def post_note(
    services: ServicesDep, caller: CallerDep, run: RunDep, wanted: NoteWanted
) -> JsonReply:
    """A new data mix, a config edit. Its effect on the loss is judged 40 to 200 steps later,
    against the trend from before it."""
    told = ToldChange(wanted.text, wanted.step, wanted.reason, wanted.expect, wanted.expect_size)
    with services.engine.begin() as connection:
        number = tell_note(connection, run, told, person_of(caller))
        row = read_note(connection, existing_run(connection, run), number)
        return JsonReply(note_body(row), status_code=201)
