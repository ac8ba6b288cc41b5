"""The `spikeguard` command: finds each package's commands by entry point and runs one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from io import TextIOWrapper

from spikeguard_cli.command import Command, CommandFailed
from spikeguard_protocol import ProtocolError
from spikeguard_protocol.escaping import printable

NEWLINE = "\n"
GROUP = "spikeguard.commands"


def find_commands() -> list[Command]:
    """Every command that the installed packages offer, by name."""
    found = [command for point in entry_points(group=GROUP) for command in point.load()]
    return sorted(found, key=lambda command: command.name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    _write_what_the_terminal_cannot()
    commands = {command.name: command for command in find_commands()}
    options = _parser(list(commands.values())).parse_args(arguments)
    command = commands[options.command]
    if missing := command.missing():
        return _fail(
            f"`spikeguard {command.name}` needs {', '.join(missing)}: "
            f"pip install 'spikeguard[{command.extra}]'"
        )
    try:
        return command.run(options)
    except (CommandFailed, ProtocolError) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except KeyboardInterrupt:
        return 130


def _write_what_the_terminal_cannot() -> None:
    """A character that the output's encoding lacks is written as its escape, and fails nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _parser(commands: list[Command]) -> ArgumentParser:
    parser = ArgumentParser(
        prog="spikeguard",
        description="Watches pre-training runs, names loss spikes and recovers from them.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=version("spikeguard"))
    words = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in commands:
        command.configure(
            words.add_parser(command.name, help=_help(command), description=_help(command))
        )
    return parser


def _help(command: Command) -> str:
    if not command.missing():
        return command.summary
    return f"{command.summary} (needs pip install 'spikeguard[{command.extra}]')"


def _fail(reason: str) -> int:
    print(f"spikeguard: {printable(reason, keep=NEWLINE)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
