"""`spikeguard summary`: what the incidents of the last weeks came to."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, say
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option
from spikeguard_protocol import RunId
from spikeguard_protocol.escaping import printable

FORMS = ("txt", "md", "html", "json")
MOST_WEEKS = 53


def summary(options: Namespace) -> int:
    """Print it, or write it into a file."""
    run = RunId.parse(options.run) if options.run else None
    suffix = Path(options.output or "").suffix.lstrip(".").lower()
    form = "json" if options.json else options.format or (suffix if suffix in FORMS else "txt")
    body = Api(load_credentials()).read(
        "/v1/summary", weeks=options.weeks, project=options.project, format=form,
        run=f"{run.project}/{run.name}" if run else None,
    )  # fmt: skip
    if options.output:
        Path(options.output).write_bytes(body)
        say(options.output)
        return 0
    text = body.decode()
    sys.stdout.write(printable(text, keep="\n\t") if sys.stdout.isatty() else text)
    return 0


def _weeks(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST_WEEKS:
        raise ArgumentTypeError(f"{text!r} is no number of weeks: give 1 to {MOST_WEEKS}")
    return int(text)


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", nargs="?", help="only this run: NAME or PROJECT/NAME")
    parser.add_argument(
        "--weeks", type=_weeks, default=4, help="this week and those before it (default 4)"
    )
    parser.add_argument("--project", help="only this project")
    parser.add_argument(
        "--format", choices=FORMS, help="how it is written (default: as the file's name ends, "
        "else txt)",
    )  # fmt: skip
    parser.add_argument("--output", metavar="FILE", help="file to write instead of printing")
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    Command("summary", "incidents by week and by run: causes, times, cost", summary, _options),
)
