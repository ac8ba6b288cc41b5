"""Runs background work that must survive a failure: logs the error and tries again later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from threading import Event
from typing import TypeVar

import sqlalchemy as sql

from spikeguard_server.store.engine import outage_of

T = TypeVar("T")
_log = logging.getLogger(__name__)


def survive(work: Callable[[], object], what: str) -> None:
    """Do `work`; a failure is logged with what `work` learned of its run, and keeps nothing else
    waiting."""
    copy_context().run(_try, work, what)


def work_off(
    engine: sql.Engine,
    find: Callable[[sql.Connection], Iterable[T]],
    work: Callable[[sql.Connection, T], object],
    what: str,
    stopping: Event | None = None,
) -> None:
    """List without locks what there is to do, then do `work` on one after the other, or on those
    before `stopping`, each in a transaction of its own."""
    with engine.connect() as connection:
        found = list(find(connection))
    for one in found:
        if stopping is not None and stopping.is_set():
            return
        survive(partial(_do, engine, work, one), f"{what} {one}")


def _do(engine: sql.Engine, work: Callable[[sql.Connection, T], object], one: T) -> None:
    with engine.begin() as connection:
        work(connection, one)


def _try(work: Callable[[], object], what: str) -> None:
    try:
        work()
    except Exception as error:
        if (cause := outage_of(error)) is None:
            _log.exception("%s failed; it is tried again", what)
        else:
            why = getattr(error, "orig", error)
            _log.warning(f"%s waits for the database ({cause.cause}): %s", what, why)
