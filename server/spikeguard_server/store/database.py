"""Which database a command means, and how it is reached.

A database is named by `DATABASE_URL` or is the one that `spikeguard up` runs; nothing is ever made
because a name was mistyped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import OperationalError, ProgrammingError

from spikeguard_cli.command import CommandFailed
from spikeguard_cli.own_files import read_own
from spikeguard_server.errors import ServiceError
from spikeguard_server.settings import SettingError, Settings, read_settings
from spikeguard_server.store.engine import open_engine
from spikeguard_server.store.migrations import require_schema

STATE = "up.json"  # in the directory of `spikeguard up`, while it runs


def data_directory() -> Path:
    """Where `spikeguard up` keeps everything unless told otherwise. No other account can enter
    root's home, and root's Postgres runs as one."""
    if os.geteuid() == 0:
        return Path("/var/lib/spikeguard")
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "spikeguard"


def database_settings(directory: Path | None) -> Settings:
    """The settings with the database that is meant; raise `CommandFailed` where there is none."""
    try:
        settings = read_settings()
    except SettingError as error:
        raise CommandFailed(str(error)) from error
    if settings.database_url:
        return settings
    state = (directory or data_directory()) / STATE
    try:
        urls = json.loads(read_own(state))
        url, owner = urls["database_url"], urls["owner_database_url"]
    except (OSError, ValueError, KeyError):
        raise CommandFailed(
            "no database is named. Set DATABASE_URL, or run this beside a running `spikeguard up` "
            "(with the same --directory, if you gave it one)"
        ) from None
    return replace(settings, database_url=url, owner_database_url=owner)


@contextmanager
def opened(settings: Settings, *, migrated: bool = True) -> Iterator[sql.Engine]:
    """A pool on the database; what goes wrong with it becomes one clear line."""
    engine = open_engine(settings)
    try:
        if migrated:
            with engine.connect() as connection:
                require_schema(connection)
        yield engine
    except OperationalError as error:
        raise CommandFailed(f"the database cannot be reached: {_first_line(error)}") from error
    except ServiceError as error:
        raise CommandFailed(str(error)) from error
    finally:
        engine.dispose()


def _first_line(error: OperationalError | ProgrammingError) -> str:
    return str(error.orig).strip().splitlines()[0] if error.orig else "no reason given"
