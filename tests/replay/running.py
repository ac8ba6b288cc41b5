"""A command of the replay, run as the command line runs it."""

from __future__ import annotations

from argparse import ArgumentParser

from spikeguard_cli.command import Command


def run(command: Command, *words: str) -> int:
    """Its exit status."""
    parser = ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(words))
