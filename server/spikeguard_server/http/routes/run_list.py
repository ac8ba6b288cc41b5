"""The list of runs: searched, filtered, sorted, page by page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Query

from spikeguard_protocol import Kind
from spikeguard_protocol.identity import TAG_PATTERN
from spikeguard_server.http.bodies.run_shapes import RunBody, RunList, RunState
from spikeguard_server.http.bodies.runs import run_body
from spikeguard_server.http.dependencies import (
    CallerDep,
    Cursor,
    Limit,
    ListOrder,
    OrderAsked,
    ProjectAsked,
    ServicesDep,
    project_asked,
)
from spikeguard_server.http.responses import JsonReply
from spikeguard_server.store.paging import PageWanted
from spikeguard_server.store.reads.runs import (
    RunListOrder,
    RunSort,
    RunsWanted,
    count_runs,
    list_runs,
    list_runs_by_attention,
)

router = APIRouter(tags=["runs"])
MOST_TAGS: Final = 5  # of a filter
AnyKind = Literal["any"] | Kind
Tag = Annotated[str, Query(pattern=f"^{TAG_PATTERN.pattern}$")]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Which runs, in which order."""

    wanted: RunsWanted
    order: RunListOrder


async def _asked(
    caller: CallerDep,
    project: ProjectAsked = None,
    state: RunState | None = None,
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
    wanted = RunsWanted(project, state, search, tuple(tag or ()), open_kind)
    return _Asked(wanted, RunListOrder(sort or RunSort.CREATED, descending or sort is None))


Asked = Annotated[_Asked, Depends(_asked)]


@router.get(
    "/v1/runs",
    summary="List runs",
    response_model=RunList,
)
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
    page = PageWanted(limit, cursor)
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
