"""The command line that every benchmark has, and what each says while it runs."""

from __future__ import annotations

import sys
from argparse import ArgumentParser


def command_line(name: str, description: str | None, quick: str) -> ArgumentParser:
    """Of `python -m benchmarks.NAME`, with `--quick`, whose help is `quick`."""
    parser = ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    return parser


def say(line: str) -> None:
    """How far it is, on standard error."""
    print(line, file=sys.stderr, flush=True)
