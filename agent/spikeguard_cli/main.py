"""The `spikeguard` command: finds each package's commands by entry point and runs one."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from importlib.metadata import entry_points, version
from io import TextIOWrapper
from typing import Any, NoReturn

from spikeguard_cli.command import EXITS, FAILED, PIPE_CLOSED, Command, CommandFailed, with_next
from spikeguard_cli.extras import install_command
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
    options = parser_of(list(commands.values())).parse_args(arguments)
    command = commands[options.command]
    if command.extra is not None and (missing := command.missing()):
        install = install_command(command.extra)
        return _fail(f"`spikeguard {command.name}` needs {', '.join(missing)}: {install}")
    usage = f"spikeguard {command.name} --help"
    try:
        status = command.run(options)
        sys.stdout.flush()  # a reader that has gone is seen here, not as Python ends
        return status
    except CommandFailed as error:
        return _fail(_with_next(str(error), usage), error.exit_status)
    except ProtocolError as error:
        return _fail(_with_next(str(error), usage))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        return _fail(_with_next(said, usage))
    except KeyboardInterrupt:
        return 130


def _with_next(said: str, usage: str) -> str:
    """An error that names what to type next: what takes the blame says it, else how it is used."""
    return said if "spikeguard " in said else with_next(said, usage)


def _write_what_the_terminal_cannot() -> None:
    """A character that the output's encoding lacks is written as its escape, and fails nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class UsageParser(ArgumentParser):
    """One whose refusal names what to type next, of the command that was typed."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What is not known is refused here, by the command's own parser."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{with_next(f'{self.prog}: {printable(message)}', f'{self.prog} --help')}\n")


def parser_of(commands: list[Command]) -> ArgumentParser:
    """The parser of the whole command line."""
    parser = UsageParser(
        prog="spikeguard",
        description="Watches pre-training runs, names loss spikes and recovers from them.",
        epilog=f"Exit codes: {_exit_words()}",
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
    return f"{command.summary} (needs the extra `{command.extra}`)"


def _exit_words() -> str:
    """Each with its first words: docs/reference/commands.md has the whole."""
    return "; ".join(f"{code} {words.partition(':')[0]}" for code, words in EXITS.items())


def _fail(reason: str, status: int = FAILED) -> int:
    print(f"spikeguard: {printable(reason, keep=NEWLINE)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
