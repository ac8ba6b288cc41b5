"""A real standby of a real Postgres, which streams what the primary writes. For tests as well."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

from spikeguard_server.cli.embedded_postgres import _prepare, _run, embedded


class NoStandby(Exception):
    """This machine has no programs to make one with."""


@contextmanager
def streaming_standby(primary_url: str, *, durable: bool = False) -> Iterator[str]:
    """The URL of the primary's database on a standby beside it; gone afterwards.

    Raises `NoStandby` where `pg_basebackup` is missing.
    """
    directory = Path(tempfile.mkdtemp(prefix="sg-standby-", dir="/tmp"))
    directory.chmod(0o755)  # the account that Postgres runs as must be able to pass
    try:
        place = _prepare(directory / "pg")
        if not (place.programs / "pg_basebackup").exists():
            raise NoStandby("the embedded Postgres comes without pg_basebackup")
        socket = unquote(primary_url.partition("?host=")[2])
        _run(
            place, "pg_basebackup", "--host", socket, "--username", "spikeguard", "--pgdata",
            str(place.data), "--write-recovery-conf", "--checkpoint", "fast", "--no-sync",
        )  # fmt: skip
        with embedded(directory / "pg", durable=durable) as url:
            database = primary_url.rpartition("?")[0].rpartition("/")[2]
            yield url.replace("/postgres?", f"/{database}?")
    finally:
        shutil.rmtree(directory)
