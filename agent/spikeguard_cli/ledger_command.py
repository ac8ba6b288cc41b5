"""`spikeguard ledger`: what was done to a run and which batches it left out, from its directory."""

from __future__ import annotations

import csv
import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from spikeguard_cli.command import Command, CommandFailed
from spikeguard_cli.options import (
    chosen,
    limit_option,
    lines_option,
    print_entries,
    since_option,
)
from spikeguard_cli.wording import LEDGER_HEAD, ledger_row, table
from spikeguard_protocol.escaping import csv_text

Entry = dict[str, Any]
COLUMNS = (
    "kind", "at", "command", "attempt", "segment", "step", "verb", "arguments", "state", "reason",
    "result", "finished_at", "first", "end", "rank", "names", "names_cut",
)  # fmt: skip


def ledger(options: Namespace) -> int:
    """Print or export the ledger of a run."""
    directory = Path(options.directory)
    if not directory.is_dir():
        raise CommandFailed(f"there is no directory {directory}")
    found = _of_directory(directory)
    found = chosen(options, found, "at", ordered=False)
    if options.csv:
        _print_csv(found)
    elif not print_entries(options, found):
        rows = [ledger_row(entry) for entry in found]
        print(table(LEDGER_HEAD, rows) if rows else "Nothing was ordered and nothing left out.")
    return 0


def _of_directory(directory: Path) -> Iterable[Entry]:
    (point,) = entry_points(group="spikeguard.agent", name="ledger")
    found: list[Entry] = point.load()(directory)
    return found


def _print_csv(entries: Iterable[Entry]) -> None:
    """A line an entry; what is a list or an object stands there as JSON, text as
    `csv_text` writes it: a batch may be called like a formula."""
    sheet = csv.DictWriter(sys.stdout, COLUMNS, extrasaction="ignore", lineterminator="\n")
    sheet.writeheader()
    for entry in entries:
        first, end = entry["batches"] or (None, None)
        written = {name: _cell(value) for name, value in entry.items()}
        sheet.writerow({**written, "first": first, "end": end})


def _cell(value: Any) -> Any:
    text = json.dumps(value) if isinstance(value, list | dict) else value
    return csv_text(text) if isinstance(text, str) else text


def _options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="what attach(directory=...) was given, or one above it"
    )
    limit_option(parser, default=0)
    since_option(parser)
    form = lines_option(parser)
    form.add_argument("--csv", action="store_true", help="print CSV with a head line")


COMMANDS: tuple[Command, ...] = (
    Command(
        "ledger",
        "print or export the commands that a job carried out, from its directory",
        ledger,
        _options,
    ),
)
