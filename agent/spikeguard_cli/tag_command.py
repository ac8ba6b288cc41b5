"""`spikeguard tag`: add tags to a run, remove some, or list those it has."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed, say
from spikeguard_cli.credentials import load_credentials
from spikeguard_protocol import RunId
from spikeguard_protocol.identity import check_tag
from spikeguard_protocol.paths import run_path


def tag(options: Namespace) -> int:
    """Change a run's tags, or print them."""
    run = RunId.parse(options.run)
    add = [check_tag("TAG", text) for text in options.tags]
    remove = [check_tag("--remove", text) for text in options.remove]
    if options.reason and not (add or remove):
        raise CommandFailed("a reason needs a change: spikeguard tag RUN TAG, or --remove TAG")
    api = Api(load_credentials())
    if add or remove:
        body = {"add": add, "remove": remove, "reason": options.reason}
        found = api.post(f"{run_path(run)}/tags", body)
    else:
        found = api.get(run_path(run))
    if options.json:
        print(json.dumps(found["tags"]))
    else:
        say(f"{run}: {', '.join(found['tags']) or 'no tags'}")
    return 0


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    parser.add_argument(
        "tags", metavar="TAG", nargs="*", help="a tag to add; none at all: list those there are"
    )
    parser.add_argument(
        "--remove", metavar="TAG", action="append", default=[], help="a tag to remove; repeatable"
    )
    parser.add_argument("--reason", help="why; the record keeps it")
    parser.add_argument("--json", action="store_true", help="print JSON, a list of tags")


COMMANDS: tuple[Command, ...] = (
    Command("tag", "add tags to a run, remove some, or list them", tag, _options),
)
