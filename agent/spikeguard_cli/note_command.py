"""`spikeguard note`: tell of a change, or list what was told and found of a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from spikeguard_cli.api import Api
from spikeguard_cli.command import Command, CommandFailed, client_command
from spikeguard_cli.credentials import load_credentials
from spikeguard_cli.options import (
    checked,
    chosen,
    limit_option,
    lines_option,
    most,
    print_entries,
    since_option,
    told,
)
from spikeguard_cli.orders import add_expect_options, expected
from spikeguard_cli.wording import note_lines
from spikeguard_protocol import RunId
from spikeguard_protocol.paths import run_path


def note(options: Namespace) -> int:
    """Write a note, or print those there are."""
    run = RunId.parse(options.run)
    api = Api(load_credentials())
    if options.text is None:
        return _list(api, run, options)
    why = {"reason": options.why} if options.why else {}
    body = {"text": options.text, "step": options.step, **expected(options), **why}
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


_step = checked(int, lambda n: n >= 0, "is no step: give 0 or more")


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="NAME or PROJECT/NAME")
    parser.add_argument(
        "text", metavar="TEXT", nargs="?", help="what was changed; left out: list the notes"
    )
    parser.add_argument(
        "--step", type=_step, help="the last step before the change (default: the run's newest)"
    )
    parser.add_argument("--why", help="why it was changed")
    add_expect_options(parser)
    limit_option(parser)
    since_option(parser)
    lines_option(parser)


COMMANDS: tuple[Command, ...] = (
    client_command(
        "note", "report a change to a run, or list changes with their effect", note, _options
    ),
)
