"""The server with one mechanism left out that exists for speed alone, to see what it buys.

    python -m benchmarks.ingest_without NAME serve --port PORT

Invariants: each stand-in does what the mechanism does, by the plain way; the server is otherwise as
shipped. Used by `python -m benchmarks.ingest --without NAME`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, Final

import psycopg
import sqlalchemy as sql

import spikeguard_server.http.app as app_module
from spikeguard_cli.main import main
from spikeguard_core.monitor import monitor
from spikeguard_protocol import plain_json
from spikeguard_server.http.routes import messages
from spikeguard_server.store import chunks, detectors, pipeline, runs


def _without_json() -> None:
    """The standard library reads the body."""
    setattr(messages, "read_json", plain_json)  # noqa: B010 - a name that it imported


def _without_pipeline() -> None:
    """One statement after the other, each waited for."""
    setattr(psycopg.Connection, "pipeline", lambda _: nullcontext())  # noqa: B010


def _without_queue() -> None:
    """Every write waits for its own answer."""

    def later(connection: sql.Connection, wanted: Any, values: Mapping[str, Any]) -> None:
        pipeline.ask(connection, (wanted, values))

    for module in (chunks, detectors, runs):
        setattr(module, "later", later)  # noqa: B010


def _without_kept() -> None:
    """The detector of each message comes from the database."""
    setattr(app_module, "Monitors", lambda _: None)  # noqa: B010


def _without_stretches() -> None:
    """Rows are judged one by one."""
    setattr(monitor, "FEWEST", 2**60)  # noqa: B010


MECHANISMS: Final[Mapping[str, Callable[[], None]]] = {
    "json": _without_json,
    "pipeline": _without_pipeline,
    "queue": _without_queue,
    "kept": _without_kept,
    "stretches": _without_stretches,
    "nothing": lambda: None,
}


if __name__ == "__main__":
    MECHANISMS[sys.argv[1]]()
    sys.argv[1:] = sys.argv[2:]
    sys.exit(main())
