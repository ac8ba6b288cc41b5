"""The options of `spikeguard replay` that say what would otherwise be guessed.

Law: importing this needs the standard library only.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from spikeguard_cli.command import CommandFailed
from spikeguard_protocol import STANDARD_SIGNALS
from spikeguard_server.replay.wanted import LogOptions, ReplayFormat


def configure_reading(parser: ArgumentParser) -> None:
    """Add the options to `parser`."""
    group = parser.add_argument_group("instead of guessing")
    group.add_argument("--format", choices=[form.word for form in ReplayFormat], help="of the file")
    group.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="the file's name of a signal, such as loss=train/nll; may be given again",
    )
    group.add_argument("--run", metavar="NAME", help="which one, where a file holds several runs")


def log_options_of(options: Namespace) -> LogOptions:
    """What `options` say; raises `CommandFailed`."""
    form = next((form for form in ReplayFormat if form.word == options.format), None)
    return LogOptions(form, dict(_pair(one) for one in options.column), options.run)


def _pair(written: str) -> tuple[str, str]:
    ours, _, theirs = written.partition("=")
    if not theirs or ours not in ("step", *STANDARD_SIGNALS):
        raise CommandFailed(
            f"--column {written}: write OURS=THEIRS, OURS one of step, "
            f"{', '.join(sorted(STANDARD_SIGNALS))}"
        )
    return ours, theirs
