"""The commands that put runs away: archive and delete."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, client_command, say
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import json_option, told
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path


def archive(options: Namespace) -> int:
    """Leave a run out of lists and metrics, or list it again."""
    run = RunId.parse(options.run)
    if options.undo:
        return told(options, _put(options, run, "unarchive"), f"{run} is listed again.")
    said = f"It comes back when it trains again, or with: spikeguard archive --undo {run}"
    return told(options, _put(options, run, "archive"), f"Archived {run}. {said}")


def delete(options: Namespace) -> int:
    """Remove a run for good; its audit stays."""
    run = RunId.parse(options.run)
    if not (options.yes or _named_again(run)):
        say("Nothing was deleted.", to_error=options.json)
        return 1
    Api(load_credentials()).delete(run_path(run), reason=options.reason)
    said = f"Deleted {run}. Its record stays: spikeguard audit {run}"
    return told(options, {"id": str(run), "deleted": True}, said)


def _put(options: Namespace, run: RunId, word: str) -> Any:
    body = {} if options.reason is None else {"reason": options.reason}
    return Api(load_credentials()).post(f"{run_path(run)}/{word}", body)


def _named_again(run: RunId) -> bool:
    question = f"Remove samples, incidents and post-mortems of {run} for good? Type its name: "
    return sys.stdin.isatty() and input(question).strip() == str(run)


def _run_option(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    json_option(parser)


def _archive_options(parser: ArgumentParser) -> None:
    _run_option(parser)
    parser.add_argument("--undo", action="store_true", help="list it again")
    parser.add_argument("--reason", help="why; the record keeps it")


def _delete_options(parser: ArgumentParser) -> None:
    _run_option(parser)
    parser.add_argument("--reason", required=True, help="why; the record keeps it")
    parser.add_argument("--yes", action="store_true", help="do not ask for the name again")


COMMANDS: tuple[Command, ...] = (
    client_command("archive", "leave a run out of lists and metrics", archive, _archive_options),
    client_command("delete", "remove a run for good, all but its record", delete, _delete_options),
)
