"""`spikeguard replay FILE`: detection over a log, offline."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spikeguard_cli.command import Command, CommandFailed

if TYPE_CHECKING:
    from spikeguard_server.domain.sample import Sample
    from spikeguard_server.replay.findings import Findings


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="CSV with the columns step,loss[,grad_norm,...], blank = not logged; JSONL; "
        "a Hugging Face trainer_state.json; or a Megatron-LM log",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curve and the incidents")


def _run(options: Namespace) -> int:
    from spikeguard_server.replay.findings import BATCH, batches, replay
    from spikeguard_server.replay.listing import listing
    from spikeguard_server.replay.progress import shown
    from spikeguard_server.replay.reading import read_log

    log = read_log(options.file)
    if log.guessed:
        print(f"spikeguard: {log.guessed}", file=sys.stderr)
    portions = shown(batches(log.samples), len(log.samples), "samples", every=BATCH)
    findings = replay(log.samples, portions=portions)
    print(json.dumps(findings.plain()) if options.json else listing(findings))
    if options.plot is not None:
        _draw(options, log.samples, findings)
    return 0


def _draw(options: Namespace, samples: Sequence[Sample], findings: Findings) -> None:
    try:
        from spikeguard_server.replay.drawing import draw
    except ImportError as error:
        raise CommandFailed(
            f"--plot needs {error.name}: pip install 'spikeguard[replay]'"
        ) from None
    try:
        draw(samples, findings, options.file.name, options.plot)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{options.plot}: cannot be written: {error}") from error


REPLAY = Command(
    name="replay",
    summary="find and name the loss spikes in a training log, offline",
    run=_run,
    configure=_configure,
)
