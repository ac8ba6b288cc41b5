"""The ledger of a run: what was done to it, and which batches it left out."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from fastapi import APIRouter
from pydantic import Field

from spikeguard_protocol import CommandId, CommandState, IncidentId, RunId, Verb
from spikeguard_server.errors import NotFound
from spikeguard_server.http.bodies.incidents import plain_arguments
from spikeguard_server.http.bodies.run_shapes import ATTEMPT, TIME, Shape, example
from spikeguard_server.http.dependencies import Cursor, Limit, RunDep, ServicesDep, page_wanted
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.store.reads.history import Row, existing_run
from spikeguard_server.store.reads.ledger import COMMAND, read_ledger

router = APIRouter(tags=["runs"])
LEDGER_EXAMPLE: dict[str, Any] = {
    "kind": "batches",
    "at": TIME,
    "command": "gpt-124m-7#3.1",
    "attempt": ATTEMPT,
    "segment": 1,
    "step": 4190,
    "verb": None,
    "arguments": None,
    "state": None,
    "reason": None,
    "result": None,
    "finished_at": None,
    "batches": [4190, 4191],
    "rank": 0,
    "names": ["c4/shard-00012:81920", "c4/shard-00012:83968"],
    "names_cut": 0,
}


class LedgerEntry(Shape):
    """A command that went out, or batches that one rank left out; null = the other kind's."""

    model_config = example(LEDGER_EXAMPLE)

    kind: Literal["command", "batches"]
    at: datetime = Field(description="when the command was delivered, or the batches told of")
    command: str | None = Field(description="for batches: who asked first, where it is known")
    attempt: str | None
    segment: int | None
    step: int | None = Field(description="applied at; or completed when they were passed over")
    verb: Verb | None
    arguments: dict[str, Any] | None
    state: CommandState | None
    reason: str | None = Field(description="why it was proposed")
    result: str | None = Field(description="what the agent said became of it")
    finished_at: datetime | None
    batches: tuple[int, int] | None
    rank: int | None
    names: list[str] | None = Field(description="what lay there, as `name_batch` calls it")
    names_cut: int | None = Field(description="names that are missing here, or were shortened")


class LedgerList(Shape):
    """Entries of the ledger, newest first."""

    model_config = example({"items": [LEDGER_EXAMPLE], "next_cursor": None})

    items: list[LedgerEntry]
    next_cursor: str | None


_EMPTY: dict[str, Any] = dict.fromkeys(LedgerEntry.model_fields)


@router.get(
    "/v1/runs/{project}/{name}/ledger", summary="What was done to a run and what it left out",
    response_model=LedgerList, response_class=JsonReply,
    responses=refusals(
        NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists those there are")
    ),
)  # fmt: skip
def get_run_ledger(
    services: ServicesDep, run: RunDep, limit: Limit = 100, cursor: Cursor = None
) -> JsonReply:
    """Every command that was delivered, with what became of it, and every batch that a rank left
    out, with its documents where the job names them. Newest first."""
    page = page_wanted(limit, cursor, datetime.fromisoformat, int, int, int)
    with services.snapshot() as connection:
        found, more = read_ledger(connection, existing_run(connection, run), page)
    items = [_command(row, run) if kind == COMMAND else _batches(row) for kind, row in found]
    return JsonReply(LedgerList(items=items, next_cursor=more))


def _command(row: Row, run: RunId) -> LedgerEntry:
    said = {
        "kind": "command",
        "at": row.delivered_at,
        "command": str(CommandId(IncidentId(run, row.incident), row.number)),
        "attempt": row.attempt_id,
        "step": row.applied_step,
        "arguments": plain_arguments(row.arguments),
    }
    told = ("verb", "state", "reason", "result", "finished_at")
    return LedgerEntry(**{**_EMPTY, **said, **{name: getattr(row, name) for name in told}})


def _batches(row: Row) -> LedgerEntry:
    said = {"kind": "batches", "at": row.told_at, "batches": (row.batch_first, row.batch_end)}
    told = ("command", "attempt", "segment", "step", "rank", "names", "names_cut")
    return LedgerEntry(**{**_EMPTY, **said, **{name: getattr(row, name) for name in told}})
