"""`spikeguard inbox`: what waits for you across runs."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.wording import inbox_lines

MOST = 200  # of each kind, as the server takes it


def inbox(options: Namespace) -> int:
    """Print what waits, the most pressing first."""
    api = Api(load_credentials())
    found = api.get("/v1/inbox", project=options.project, limit=options.limit)
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    lines = [line for item in found["items"] for line in inbox_lines(item)]
    print("\n".join(lines) if lines else "Nothing waits.")
    if found["more"]:
        print(f"There is more: --limit {MOST} lists up to {MOST} of each kind.")
    return 0


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= MOST:
        raise ArgumentTypeError(f"{text!r}: give 1 to {MOST} items of each kind")
    return int(text)


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--project", help="only what waits in this project")
    parser.add_argument("--limit", type=_limit, default=50, help="items of each kind (default 50)")
    parser.add_argument("--json", action="store_true", help="print JSON")


COMMANDS: tuple[Command, ...] = (
    Command("inbox", "list what waits for you: decisions, failures, incidents", inbox, _options),
)
