"""The commands that the agent's package carries out; found by entry point when they run.

Nothing of the agent is imported to offer them: that would load torch for every `--help`.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from importlib.metadata import entry_points

from spikeguard_cli.command import Command, CommandFailed
from spikeguard_cli.options import json_option, limit_option, lines_option, since_option

GROUP = "spikeguard.agent"


def _run(name: str, options: Namespace) -> int:
    (point,) = entry_points(group=GROUP, name=name)
    try:
        run = point.load()
    except ModuleNotFoundError as error:
        raise CommandFailed(
            f"`spikeguard {name}` needs {error.name}: type it in the environment that your "
            "training job runs in"
        ) from error
    status: int = run(options)
    return status


def _doctor_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        metavar="CHECKPOINT",
        help="a .pt or .safetensors file, or a folder of those or of torch's DCP",
    )
    json_option(parser)


def _journal_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="what attach(directory=...) was given, or one above it"
    )
    parser.add_argument(
        "--undo",
        metavar="ID",
        help="undo an order, RUN#3.1 (quote it), from the next start on",
    )
    limit_option(parser, default=0)
    since_option(parser)
    lines_option(parser)


def _sync_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "directory",
        metavar="DIR",
        help="what attach(directory=...) was given, or a directory above several of those",
    )
    parser.add_argument("--server", help="address of the server (default: SPIKEGUARD_SERVER)")
    parser.add_argument(
        "--token-file",
        help="file with an agent's token (default: SPIKEGUARD_TOKEN or SPIKEGUARD_TOKEN_FILE)",
    )
    json_option(parser)


COMMANDS: tuple[Command, ...] = (
    Command(
        "doctor",
        "look for damage in a checkpoint; needs torch",
        partial(_run, "doctor"),
        _doctor_options,
    ),
    Command(
        "journal",
        "list what a run was ordered and what of it still holds, or undo an order; needs no server",
        partial(_run, "journal"),
        _journal_options,
    ),
    Command(
        "sync",
        "upload what a run without a server left on disk; may be repeated",
        partial(_run, "sync"),
        _sync_options,
    ),
)
