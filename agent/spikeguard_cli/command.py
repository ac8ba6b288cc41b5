"""What a command of `spikeguard` is. Each package offers a tuple of them by entry point.

Importing the module that offers commands needs the standard library only; what a command needs
beyond that is imported when it runs, so that help works without any extra.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tomllib
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeguard_protocol.escaping import printable
from spikeguard_protocol.plain_http import plain_http_warning


def _no_options(parser: ArgumentParser) -> None:
    del parser


FAILED, NOT_ALLOWED, CHANGED, NO_SERVER = 1, 4, 5, 6
PIPE_CLOSED = 141
EXITS: Mapping[int, str] = {
    0: "done",
    FAILED: "not done: one line on stderr says why and what to type next, or a question was "
    "answered with no",
    2: "an option or argument is not known, is missing, or is not one of its choices",
    NOT_ALLOWED: "nobody is logged in, the token does not work, or its role may not do this",
    CHANGED: "it is no longer as you saw it (another revision, decided already): nothing was done",
    NO_SERVER: "the server did not answer, or can't at present: the same again may do it",
    130: "interrupted (Ctrl-C)",
    PIPE_CLOSED: "whoever read its output, such as `head`, has stopped reading",
}


@dataclass(frozen=True, slots=True)
class Command:
    """One word after `spikeguard`."""

    name: str
    summary: str  # one line, for a tired reader
    run: Callable[[Namespace], int]  # returns the exit status
    configure: Callable[[ArgumentParser], None] = _no_options
    extra: str | None = None  # the extra that brings what it needs
    needs: tuple[str, ...] = ()  # modules of that extra

    def missing(self) -> list[str]:
        """The modules it needs that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


CLIENT = ("httpx", "msgspec")  # what calls of a server take


def client_command(
    name: str,
    summary: str,
    run: Callable[[Namespace], int],
    configure: Callable[[ArgumentParser], None],
) -> Command:
    """One that asks a server."""
    return Command(name, summary, run, configure, "cli", CLIENT)


def warn_of_plain_http(server: str) -> None:
    """One line on stderr before a token goes to another machine in the clear."""
    if (warning := plain_http_warning(server, os.environ)) is not None:
        say(f"spikeguard: warning: {warning}", to_error=True)


def say(sentence: str, *, to_error: bool = False) -> None:
    """One line for the person at the terminal, whatever stands in the names that it repeats."""
    print(printable(sentence), file=sys.stderr if to_error else sys.stdout)


def agrees(question: str) -> bool:
    """Whether the person at the terminal says yes; nobody there is a no."""
    if not sys.stdin.isatty():
        say("spikeguard: nobody is at a terminal to be asked: give --yes", to_error=True)
        return False
    return input(f"{question} [y/N] ").strip().lower() in {"y", "yes"}


def with_next(said: str, command: str) -> str:
    """An error, and what to type next."""
    return f"{said}{'' if said.endswith(('.', '?', '!')) else '.'} Next: `{command}`"


def read_toml(file: Path) -> dict[str, Any]:
    """The TOML in a file; raises `CommandFailed`."""
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, too deep, too many digits
        raise CommandFailed(f"{file} is not TOML: {error}") from error


class CommandFailed(Exception):
    """Ends a command with one clear line on stderr and an exit status of `EXITS`."""

    exit_status = FAILED


class NotAllowed(CommandFailed):
    """Nobody is logged in, or whoever is may not."""

    exit_status = NOT_ALLOWED


class NoServer(CommandFailed):
    """There is no answer, or none at present."""

    exit_status = NO_SERVER


class Changed(CommandFailed):
    """What was decided on is no longer what stands."""

    exit_status = CHANGED
