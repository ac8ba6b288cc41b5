"""The list of runs: searched, filtered, sorted, page by page, or all that match as a file.

Invariants: a file comes page by page, each in its token's turn; nothing is held between two pages,
however slowly they are read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query
from fastapi.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from spikeguard_protocol import Kind
from spikeguard_protocol.identity import TAG_PATTERN
from spikeguard_server.http.bodies.run_export import csv_head, csv_row
from spikeguard_server.http.bodies.run_shapes import RunBody, RunList, RunState
from spikeguard_server.http.bodies.runs import run_body
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    ListOrder,
    OrderAsked,
    ProjectAsked,
    Services,
    ServicesDep,
    page_wanted,
    project_asked,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.identity.permissions import Caller
from spikeguard_server.store.reads.history import PageWanted, read_cursor
from spikeguard_server.store.reads.run_list import (
    RunListOrder,
    RunSort,
    RunsWanted,
    count_runs,
    cursor_readers,
    list_runs,
    list_runs_by_attention,
)

router = APIRouter(tags=["runs"])
MOST_TAGS: Final = 5  # of a filter
MOST_EXPORTED: Final = 50_000  # runs
PAGE: Final = 500  # runs of a file that are read at once
AnyKind = Literal["any"] | Kind
Tag = Annotated[str, Query(pattern=f"^{TAG_PATTERN.pattern}$")]


class ExportFormat(StrEnum):
    """How a file is written."""

    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which runs, in which order."""

    wanted: RunsWanted
    order: RunListOrder


async def _asked(
    caller: CallerDep,
    project: ProjectAsked = None,
    state: RunState | None = None,
    archived: Annotated[bool, Query(description="those alone; else those that are not")] = False,
    search: Annotated[
        str,
        Query(
            max_length=100,
            pattern=r"^[^\x00-\x1f]*$",
            description="stands somewhere in PROJECT/NAME, whatever the case",
        ),
    ] = "",
    tag: Annotated[
        list[Tag] | None, Query(max_length=MOST_TAGS, description="has all of these")
    ] = None,
    open_kind: Annotated[
        AnyKind | None, Query(description="of the open incident; `any`: whatever it is")
    ] = None,
    sort: Annotated[
        RunSort | None, Query(description="goes before `order`; not measured comes last")
    ] = None,
    descending: Annotated[bool, Query(description="with `sort`")] = True,
) -> _Asked:
    project = project_asked(caller, project)
    wanted = RunsWanted(project, state, archived, search, tuple(tag or ()), open_kind)
    return _Asked(wanted, RunListOrder(sort or RunSort.CREATED, descending or sort is None))


Asked = Annotated[_Asked, Depends(_asked)]


@router.get("/v1/runs", summary="List runs", response_model=RunList, response_class=JsonReply)
def get_runs(
    services: ServicesDep,
    asked: Asked,
    limit: Limit = 100,
    cursor: Cursor = None,
    order: OrderAsked = ListOrder.NEWEST,
    sort: RunSort | None = None,
    count: Annotated[bool, Query(description="tell how many match")] = False,
) -> JsonReply:
    """The runs that the token may see, newest first, or as `sort` says. `order=attention` is one
    page without a cursor: those with an open incident first, then those that have not ended, the
    projects in turn."""
    page = page_wanted(limit, cursor, *cursor_readers(asked.order))
    more = total = None
    with services.snapshot() as connection:
        if order is ListOrder.ATTENTION and sort is None:
            found = list_runs_by_attention(connection, asked.wanted, limit, services.silent_after)
        else:
            found, more = list_runs(
                connection, asked.wanted, page, services.silent_after, asked.order
            )
        if count:
            total = count_runs(connection, asked.wanted, services.silent_after)
    items: list[RunBody] = [run_body(row, services.silent_after) for row in found]
    return JsonReply(RunList(items=items, next_cursor=more, total=total))


@router.get(
    "/v1/runs/export",
    summary="All runs that match, as a file",
    response_model=RunList,
    responses={200: {"content": {"text/csv": {"example": "project,name,state\r\n"}}}},
)
async def export_runs(
    services: ServicesDep,
    caller: CallerDep,
    asked: Asked,
    format: ExportFormat = ExportFormat.JSON,
) -> StreamingResponse:
    """The filters and the order of the list; up to 50,000 runs. In CSV, text that a spreadsheet
    would take for a formula has an apostrophe before it."""
    first = await run_in_threadpool(_page, services, asked, None)
    pages = _pages(services, caller, asked, first)
    lines = _csv(pages) if format is ExportFormat.CSV else _json(pages)
    media = "text/csv" if format is ExportFormat.CSV else "application/json"
    name = {"Content-Disposition": f'attachment; filename="runs.{format.value}"'}
    return StreamingResponse(lines, media_type=media, headers=name)


_Page = tuple[list[RunBody], str | None]


def _page(services: Services, asked: _Asked, cursor: str | None) -> _Page:
    page = PageWanted(PAGE, read_cursor(cursor, cursor_readers(asked.order)))
    with services.snapshot() as connection:
        found, more = list_runs(connection, asked.wanted, page, services.silent_after, asked.order)
    return [run_body(row, services.silent_after) for row in found], more


async def _pages(
    services: Services, caller: Caller, asked: _Asked, page: _Page
) -> AsyncIterator[list[RunBody]]:
    given = 0
    while True:
        items, more = page
        yield items[: MOST_EXPORTED - given]
        given += len(items)
        if more is None or given >= MOST_EXPORTED:
            return
        async with services.calls.one_of(caller.grant):
            page = await run_in_threadpool(_page, services, asked, more)


async def _csv(pages: AsyncIterator[list[RunBody]]) -> AsyncIterator[bytes]:
    yield csv_head()
    async for items in pages:
        yield b"".join(map(csv_row, items))


async def _json(pages: AsyncIterator[list[RunBody]]) -> AsyncIterator[bytes]:
    yield b'{"items":['
    gap = b""
    async for items in pages:
        for item in items:
            yield gap + JsonReply(_plain(item)).body
            gap = b",\n"
    yield b'],"next_cursor":null,"total":null}'


def _plain(item: RunBody) -> Any:
    return item.model_dump()
