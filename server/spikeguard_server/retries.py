"""Runs background work that must survive a failure: logs the error and tries again later."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextvars import copy_context
from functools import partial
from threading import Event
from typing import TypeVar

from spikeguard_server.store.engine import outage_of

T = TypeVar("T")
_log = logging.getLogger(__name__)


def survive(work: Callable[[], object], what: str) -> None:
    """Do `work`; a failure is logged with what `work` learned of its run, and keeps nothing else
    waiting."""
    copy_context().run(_try, work, what)


def survive_each(
    found: Iterable[T],
    work: Callable[[T], object],
    what: Callable[[T], str],
    stopping: Event | None,
) -> None:
    """Do `work` on one after the other, or on those before `stopping`."""
    for one in found:
        if stopping is not None and stopping.is_set():
            return
        survive(partial(work, one), what(one))


def _try(work: Callable[[], object], what: str) -> None:
    try:
        work()
    except Exception as error:
        if (cause := outage_of(error)) is None:
            _log.exception("%s failed; it is tried again", what)
        else:
            why = getattr(error, "orig", error)
            _log.warning(f"%s waits for the database ({cause.cause}): %s", what, why)
