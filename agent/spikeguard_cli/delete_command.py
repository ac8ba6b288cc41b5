"""`spikeguard delete`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, client_command, say
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option, told
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path


def delete(options: Namespace) -> int:
    """Remove a run for good; its audit stays."""
    run = RunId.parse(options.run)
    if not (options.yes or _named_again(run)):
        say("Nothing was deleted.", to_error=options.json)
        return 1
    Api(load_credentials()).delete(run_path(run), reason=options.reason)
    said = f"Deleted {run}. Its record stays: spikeguard audit {run}"
    return told(options, {"id": str(run), "deleted": True}, said)


def _named_again(run: RunId) -> bool:
    question = f"Remove samples, incidents and post-mortems of {run} for good? Type its name: "
    return sys.stdin.isatty() and input(question).strip() == str(run)


def _delete_options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    json_option(parser)
    parser.add_argument("--reason", required=True, help="why; the record keeps it")
    parser.add_argument("--yes", action="store_true", help="do not ask for the name again")


COMMANDS: tuple[Command, ...] = (
    client_command("delete", "remove a run for good, all but its record", delete, _delete_options),
)
