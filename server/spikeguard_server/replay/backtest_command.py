"""`spikeguard backtest DIR`: detection over every log of a folder, offline."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from spikeguard_cli.command import Command, CommandFailed

if TYPE_CHECKING:
    from spikeguard_server.replay.backtest import Tested

PROCESSES = 2


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="searched with all its folders, for all formats"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _run(options: Namespace) -> int:
    from spikeguard_server.replay.backtest import plain, sources, table
    from spikeguard_server.replay.progress import shown

    try:
        paths = sources(options.folder)
    except OSError as error:
        raise CommandFailed(f"{options.folder}: cannot be searched: {error.strerror}") from error
    if not paths:
        raise CommandFailed(f"{options.folder}: no file in it: name a folder of training logs")
    lines = list(shown(_all(paths, options.folder), len(paths), "files"))
    print(json.dumps(plain(lines)) if options.json else table(lines))
    return 0 if any(line.unread is None for line in lines) else 1


def _all(paths: list[Path], folder: Path) -> Iterator[Tested]:
    """One after the other where there are few, else in `PROCESSES`; in the order of `paths`."""
    from spikeguard_server.replay.backtest import backtest_log

    names = [str(path.relative_to(folder)) for path in paths]
    if len(paths) < 2 * PROCESSES:
        yield from map(backtest_log, paths, names)
        return
    with ProcessPoolExecutor(PROCESSES) as processes:
        yield from processes.map(backtest_log, paths, names)


BACKTEST = Command(
    name="backtest",
    summary="count the incidents of every training log in a folder, offline",
    run=_run,
    configure=_configure,
)
