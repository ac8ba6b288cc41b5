"""`spikeguard backtest DIR`: detection over every log of a folder, offline."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING

from spikeguard_cli.command import Command, CommandFailed
from spikeguard_server.replay.detector_options import (
    Chosen,
    chosen_by,
    configure_detector,
    detector_choice,
)
from spikeguard_server.replay.trial_command import compare, configure_trial

if TYPE_CHECKING:
    from spikeguard_server.replay.backtest import BacktestedLog

PROCESSES = 2


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, metavar="DIR", help="searched with all its folders, for all formats"
    )
    configure_detector(parser)
    parser.add_argument(
        "--compare", nargs="+", metavar="NAME",
        help="detectors, side by side: their alarms, and what they find of injected spikes",
    )  # fmt: skip
    configure_trial(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _run(options: Namespace) -> int:
    from spikeguard_server.replay.backtest import backtest_json, table
    from spikeguard_server.replay.progress import with_progress

    paths = logs_in(options.folder)
    if options.compare:
        if options.detector is not None:
            raise CommandFailed("--compare names the detectors: leave --detector out")
        return compare(options, paths)
    chosen = chosen_by(options)
    lines = list(with_progress(_all(paths, options.folder, chosen), len(paths), "files"))
    print(json.dumps(backtest_json(lines)) if options.json else table(lines))
    return 0 if any(line.unread is None for line in lines) else 1


def logs_in(folder: Path) -> list[Path]:
    """Every log under `folder`; raises `CommandFailed` where there is none."""
    from spikeguard_server.replay.backtest import sources

    try:
        paths = sources(folder)
    except OSError as error:
        raise CommandFailed(f"{folder}: cannot be searched: {error.strerror}") from error
    if not paths:
        raise CommandFailed(f"{folder}: no file in it: name a folder of training logs")
    return paths


def _all(paths: list[Path], folder: Path, chosen: Chosen) -> Iterator[BacktestedLog]:
    """One after the other where there are few, else in `PROCESSES`; in the order of `paths`."""
    from spikeguard_server.replay.backtest import backtest_log

    names, choice = (
        [str(path.relative_to(folder)) for path in paths],
        repeat(detector_choice(chosen)),
    )
    if len(paths) < 2 * PROCESSES:
        yield from map(backtest_log, paths, names, choice)
        return
    with ProcessPoolExecutor(PROCESSES) as processes:
        yield from processes.map(backtest_log, paths, names, choice)


BACKTEST = Command(
    name="backtest",
    summary="count the incidents of every training log in a folder, offline",
    run=_run,
    configure=_configure,
)
