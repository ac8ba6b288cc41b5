"""What a command of `spikeguard` is. Each package offers a tuple of them by entry point.

Law: importing the module that offers commands needs the standard library only; what a command
needs beyond that is imported when it runs, so that help works without any extra.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spikeguard_protocol.escaping import printable
from spikeguard_protocol.plain_http import plain_http_warning


def _no_options(parser: ArgumentParser) -> None:
    del parser


EXITS: Mapping[int, str] = {
    0: "done",
    1: "not done: one line on stderr says why, or a question was answered with no",
    2: "an option or argument is not known, is missing, or is not one of its choices",
    130: "interrupted (Ctrl-C)",
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
    exits: Mapping[int, str] = field(default_factory=dict)  # statuses of its own, beside `EXITS`

    def missing(self) -> list[str]:
        """The modules it needs that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def warn_of_plain_http(server: str) -> None:
    """One line on stderr before a token goes to another machine in the clear."""
    if (warning := plain_http_warning(server, os.environ)) is not None:
        say(f"spikeguard: warning: {warning}", to_error=True)


def say(sentence: str, *, to_error: bool = False) -> None:
    """One line for the person at the terminal, whatever stands in the names that it repeats."""
    print(printable(sentence), file=sys.stderr if to_error else sys.stdout)


class CommandFailed(Exception):
    """Ends a command with one clear line on stderr and exit status 1."""
