"""`GET /v1/events`: what happens, as it happens, as server-sent events.

Law: a stream ends when its token does. `Last-Event-ID` goes on where another stream ended, on this
server or on another replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime, timedelta
from time import monotonic
from typing import Annotated, Final
from uuid import UUID

import sqlalchemy as sql
from fastapi import APIRouter, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response, StreamingResponse

from spikeguard_protocol import DEFAULT_PROJECT, RunId
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.errors import Busy, NotFound, ServiceError
from spikeguard_server.http.dependencies import (
    CallerDep,
    Services,
    ServicesDep,
    bearer_secret,
    sign_in,
)
from spikeguard_server.http.event_feed import MOST, EventFeed, Follower
from spikeguard_server.http.responses import JsonReply, refusals
from spikeguard_server.store.reads.feed import (
    WINDOW,
    FeedPosition,
    Happening,
    happened_since,
    read_seen,
)
from spikeguard_server.store.reads.history import existing_run

router = APIRouter(tags=["notifications"])
READY_S: Final = 10.0
AT_ONCE: Final = 100  # events that were missed, each of up to 7 kB; many streams may hold as many
Last = tuple[datetime, UUID, int] | None
_NAME = f"^{NAME_PATTERN.pattern}$"
EVENT_EXAMPLE = (
    "id: WzE3NzM0NTc2MzIuNDUseyI\nevent: command.approve\n"
    'data: {"project":"default","run":"gpt-124m-7","number":17,"at":"2026-03-14T03:07:12.450Z",'
    '"actor":"Ada Lovelace","action":"approve","subject":"gpt-124m-7#3.1","before":"proposed",'
    '"after":"approved","reason":"approved revision 1 as shown","changes":[]}\n\n'
)


class EventStream(StreamingResponse):
    """Server-sent events."""

    media_type = "text/event-stream"


@router.get(
    "/v1/events",
    summary="Follow along",
    response_class=Response,
    responses={
        200: {
            "description": "A stream that goes on until one side ends it.",
            "content": {"text/event-stream": {"example": EVENT_EXAMPLE}},
        },
        **refusals(
            NotFound("There is no run gpt-124m-7", "`spikeguard runs` lists those there are"),
            Busy(f"{MOST} follow along already", "Come back later", limit=MOST),
        ),
    },
)
async def stream_events(
    services: ServicesDep,
    caller: CallerDep,
    request: Request,
    project: Annotated[str, Query(pattern=_NAME)] = DEFAULT_PROJECT,
    run: Annotated[str | None, Query(pattern=_NAME, examples=["gpt-124m-7"])] = None,
    last_event_id: Annotated[str | None, Header(max_length=8000)] = None,
    after: Annotated[str | None, Query(max_length=8000, description="as Last-Event-ID")] = None,
) -> EventStream:
    """Every change of state of a project's runs, or of one: run, incident and command events, in
    order, from now on or from behind the event that `Last-Event-ID` names. A stream from now on
    begins with an id alone, that of its place."""
    caller.check_project(project)
    place = read_seen(last_event_id or after or "")
    key = await run_in_threadpool(_key, services, project, run) if run is not None else None
    feed: EventFeed = request.app.state.feed
    follower = feed.join(project, key, caller.grant)
    secret = bearer_secret(request) or ""
    return EventStream(_stream(services, feed, follower, place, secret))


def _key(services: Services, project: str, run: str) -> UUID:
    with services.snapshot() as connection:
        return existing_run(connection, RunId(project, run))


async def _stream(
    services: Services, feed: EventFeed, follower: Follower, seen: FeedPosition, secret: str
) -> AsyncIterator[bytes]:
    try:
        yield b"retry: 2000\n\n"
        await _wait(follower.ready, READY_S)
        if seen.at is None and follower.place.at is not None:
            seen = follower.place
            # for whom it breaks before it tells anything
            yield b"id: %b\n\n" % seen.write().encode()
        elif seen.at is not None:
            async for events in _missed(services, follower, seen):
                yield events
        checked, sign_s = monotonic(), services.settings.stream_sign_s
        while True:
            if monotonic() - checked >= sign_s:
                if not await run_in_threadpool(_still_good, services, follower, secret):
                    return
                checked = monotonic()
                yield b": still here\n\n"
            told, entry_now = await _next(follower, sign_s)
            if told and entry_now is None:
                return
            if entry_now is not None and seen.fresh(entry_now):
                yield _event(entry_now, seen)
    finally:
        feed.leave(follower)


async def _next(follower: Follower, within_s: float) -> tuple[bool, Happening | None]:
    """Whether something came, and what; None for the end."""
    try:
        return True, await asyncio.wait_for(follower.queue.get(), within_s)
    except TimeoutError:
        return False, None


async def _wait(ready: asyncio.Event, within_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(ready.wait(), within_s)


async def _missed(
    services: Services, follower: Follower, seen: FeedPosition
) -> AsyncIterator[bytes]:
    """What happened since the place that was reached: read and written in a thread, for which the
    streams of one token take turns, since it may be years."""
    assert seen.at is not None
    since = seen.at - WINDOW
    after: Last = None
    while True:
        async with services.lookups.one_of(follower.grant):
            told, after = await run_in_threadpool(
                _page, services.engine, follower, since, after, seen
            )
        if told:
            yield told
        if after is None:
            return
        since = after[0] - timedelta(microseconds=1)  # what lies before was read


def _page(
    engine: sql.Engine, follower: Follower, since: datetime, after: Last, seen: FeedPosition
) -> tuple[bytes, Last]:
    """What is fresh of the next page, and where that ends; None for the last one."""
    with engine.connect() as connection:
        page = happened_since(
            connection, since, project=follower.project, run_id=follower.run_id, after=after,
            limit=AT_ONCE,
        )  # fmt: skip
    told = b"".join(_event(entry, seen) for entry in page if seen.fresh(entry))
    more = len(page) == AT_ONCE
    return told, (page[-1].at, page[-1].run_id, page[-1].number) if more else None


def _still_good(services: Services, follower: Follower, secret: str) -> bool:
    """Whether the token still works, and for this project; while nobody can tell, it does."""
    try:
        sign_in(services, secret).check_project(follower.project or "")
    except ServiceError:
        return False
    except SQLAlchemyError:
        return True
    return True


def _event(entry: Happening, seen: FeedPosition) -> bytes:
    names = ("project", "run", "number", "at", "actor", "action", "subject", "before", "after")
    who = ("actor_kind", "token", "session", "known_by")
    body = {name: getattr(entry, name) for name in (*names, "reason", "changes", *who)}
    data = JsonReply(body).body
    assert isinstance(data, bytes)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (seen.write().encode(), entry.name.encode(), data)
