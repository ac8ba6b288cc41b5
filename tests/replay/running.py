"""A command of the replay, run as the command line runs it, and logs as samples."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from spikeguard_cli.command import Command
from spikeguard_core.detection.sample import Sample
from spikeguard_replay.judging import samples_of
from spikeguard_replay.log import LogOptions
from spikeguard_replay.reading import read_log


def run(command: Command, *words: str) -> int:
    """Its exit status."""
    parser = ArgumentParser()
    command.configure(parser)
    return command.run(parser.parse_args(words))


def samples_in(path: Path, options: LogOptions = LogOptions()) -> list[Sample]:  # noqa: B008
    """The rows of a log as detection takes them."""
    return list(samples_of(read_log(path, options)))


def rows_in(path: Path, options: LogOptions = LogOptions()) -> list[tuple[int, dict[str, float]]]:  # noqa: B008
    """Step and values of each row."""
    return [(one.step, dict(one.values)) for one in samples_in(path, options)]
