"""`spikeguard inbox`: what waits for you across runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option, limit_option, print_json
from spikeguard_cli.wording import inbox_lines

MOST = 200  # of each kind, as the server lists them


def inbox(options: Namespace) -> int:
    """Print what waits, the most pressing first."""
    api = Api(load_credentials())
    asked = min(options.limit or MOST, MOST)
    found = api.get("/v1/inbox", project=options.project, limit=asked)
    shown = found["items"][: options.limit or None]
    more = found["more"] or len(shown) < len(found["items"])
    if options.json:
        print_json({**found, "items": shown, "more": more})
        return 0
    lines = [line for item in shown for line in inbox_lines(item)]
    print("\n".join(lines) if lines else "Nothing waits.")
    if more:
        print(_more(options.limit))
    return 0


def _more(limit: int) -> str:
    if 0 < limit < MOST:
        return "There is more: spikeguard inbox --limit 0"
    return f"There is more than {MOST} of a kind: answer these first, or ask for one --project."


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--project", help="only what waits in this project")
    limit_option(parser)
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    Command("inbox", "list what waits for you: decisions, failures, incidents", inbox, _options),
)
