"""`spikeguard note`: tell of a change, or list what was told and found of a run."""

from __future__ import annotations

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed, client_command
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import (
    chosen,
    limit_option,
    lines_option,
    most,
    print_entries,
    since_option,
    told,
)
from spikeguard_cli.wording import note_lines
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path

EXPECTED = ("lower", "higher", "none")


def note(options: Namespace) -> int:
    """Write a note, or print those there are."""
    run = RunId.parse(options.run)
    api = Api(load_credentials())
    if options.text is None:
        return _list(api, run, options)
    if options.by is not None and options.expect not in ("lower", "higher"):
        raise CommandFailed("--by is the size of an effect: give --expect lower or higher with it")
    body = {
        "text": options.text, "step": options.step, "expect": options.expect,
        "expect_size": options.by, **({"reason": options.why} if options.why else {}),
    }  # fmt: skip
    made = api.post(f"{run_path(run)}/notes", body)
    said = f"Note {made['number']} of {run} at step {made['step']:,}: {made['outcome']}."
    return told(options, made, said)


def _list(api: Api, run: RunId, options: Namespace) -> int:
    if options.step is not None or options.expect or options.by is not None or options.why:
        raise CommandFailed("a note needs its text: spikeguard note RUN 'what was changed'")
    found = chosen(options, api.items(f"{run_path(run)}/notes", most(options)), "at")
    if print_entries(options, found):
        return 0
    lines = [line for one in found for line in note_lines(one)]
    print("\n".join(lines) if lines else "Nobody told of a change, and no attempt began with one.")
    return 0


def _nats(text: str) -> float:
    try:
        size = float(text)
    except ValueError:
        size = math.nan
    if not 0.0 < size < 1e6:
        raise ArgumentTypeError(
            f"{text!r} is no size of an effect: give nats above 0, such as 0.02"
        )
    return size


def _step(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ArgumentTypeError(f"{text!r} is no step: give 0 or more")
    return int(text)


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="what was changed; left out: list the notes"
    )
    parser.add_argument(
        "--step", type=_step, help="the last step before the change (default: the run's newest)"
    )
    parser.add_argument("--why", help="why it was changed")
    parser.add_argument(
        "--expect", choices=EXPECTED, help="what you expect of the loss, against its trend"
    )
    parser.add_argument("--by", type=_nats, metavar="NATS", help="by how much")
    limit_option(parser)
    since_option(parser)
    lines_option(parser)


COMMANDS: tuple[Command, ...] = (
    client_command(
        "note", "report a change to a run, or list changes with their effect", note, _options
    ),
)
