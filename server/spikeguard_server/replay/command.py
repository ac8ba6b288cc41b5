"""`spikeguard replay FILE`: detection over a log, offline."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikeguard_cli.command import Command, CommandFailed, say
from spikeguard_protocol.escaping import printable
from spikeguard_server.replay.detector_options import chosen_by, configure_detector, detector_choice
from spikeguard_server.replay.policy_options import (
    assumed_of,
    configure_policy,
    policy_from_options,
)
from spikeguard_server.replay.reading_options import configure_reading, log_options_of

if TYPE_CHECKING:
    from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice
    from spikeguard_server.domain.detection.sample import Sample
    from spikeguard_server.domain.policy.settings import Policy
    from spikeguard_server.replay.findings import Findings


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        help="CSV with the columns step,loss[,grad_norm,...], blank = not logged; JSONL; "
        "a Hugging Face trainer_state.json; a Megatron-LM log; TensorBoard events; an MLflow "
        "run's folder or database; a W&B panel's CSV",
    )
    configure_reading(parser)
    configure_detector(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    configure_policy(parser)
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curve and the incidents")


def _run(options: Namespace) -> int:
    from spikeguard_server.replay.findings import BATCH, batches, replay
    from spikeguard_server.replay.listing import findings_listing
    from spikeguard_server.replay.progress import with_progress
    from spikeguard_server.replay.reading import read_log

    policy = None if options.policy is None else policy_from_options(options)
    choice = detector_choice(chosen_by(options, policy.detection if policy else {}))
    log = read_log(options.file, log_options_of(options))
    if log.guessed:
        say(f"spikeguard: {log.guessed}", to_error=True)
    portions = with_progress(batches(log.samples), len(log.samples), "samples", every=BATCH)
    findings = replay(log.samples, choice, portions=portions)
    more, text = _advice(options, policy, log.samples, choice)
    if options.json:
        print(json.dumps(findings.plain() | more))
    else:
        print(printable(findings_listing(findings) + text, keep="\n"))
    if options.plot is not None:
        _draw(options, log.samples, findings)
    return 0


def _advice(
    options: Namespace, policy: Policy | None, samples: Sequence[Sample], choice: DetectorChoice
) -> tuple[dict[str, Any], str]:
    """What the policy would have proposed, for `--json` and as text; nothing if not asked."""
    if policy is None:
        return {}, ""
    from spikeguard_server.replay.advice import advise
    from spikeguard_server.replay.advice_listing import advice_json, advice_listing

    assumed = assumed_of(options)
    advice = advise(samples, policy, assumed, choice)
    text = "\n" + advice_listing(advice, policy, assumed)
    return {"policy": advice_json(advice, policy, assumed)}, text


def _draw(options: Namespace, samples: Sequence[Sample], findings: Findings) -> None:
    try:
        from spikeguard_server.replay.drawing import draw_log
    except ImportError as error:
        raise CommandFailed(
            f"--plot needs {error.name}: pip install 'spikeguard[replay]'"
        ) from None
    try:
        draw_log(samples, findings, printable(options.file.name), options.plot)
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{options.plot}: cannot be written: {error}") from error


REPLAY = Command(
    name="replay",
    summary="find and name the loss spikes in a training log, offline",
    run=_run,
    configure=_configure,
)
