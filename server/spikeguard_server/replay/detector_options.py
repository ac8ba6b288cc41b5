"""The options that choose a detector and its settings, for replay, backtest and tune.

Law: importing this needs the standard library only.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from spikeguard_cli.command import CommandFailed

if TYPE_CHECKING:
    from spikeguard_server.domain.detection.detectors.plugged import DetectorChoice

Chosen: TypeAlias = Mapping[str, Any]  # `detector` and settings, as a policy has them


def configure_detector(parser: ArgumentParser) -> None:
    """Add the options to `parser`."""
    group = parser.add_argument_group("who judges the loss")
    group.add_argument(
        "--detector",
        metavar="NAME",
        help="robust_trend (the default), zscore, ewma, or one that is installed",
    )
    group.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of it, such as threshold=5; may be given again "
        "(docs/reference/detection.md)",
    )


def chosen_by(options: Namespace, usual: Chosen | None = None) -> dict[str, Any]:
    """What `options` say, over what is `usual` of the same detector; raises `CommandFailed`."""
    chosen: dict[str, Any] = dict(number_of(written) for written in options.set)
    if options.detector is not None:
        chosen["detector"] = options.detector
    if usual and chosen.get("detector", usual.get("detector")) == usual.get("detector"):
        chosen = {**usual, **chosen}
    detector_choice(chosen)
    return chosen


def number_of(written: str) -> tuple[str, float]:
    """The setting that one `--set` writes; raises `CommandFailed`."""
    name, _, value = written.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise CommandFailed(f"--set {written}: write NAME=VALUE, a number") from None


def detector_choice(chosen: Chosen) -> DetectorChoice:
    """The detector that was chosen; raises `CommandFailed`."""
    from spikeguard_server.detectors import choose
    from spikeguard_server.domain.policy.settings import PolicyError

    try:
        return choose(chosen)
    except PolicyError as error:
        raise CommandFailed(f"--detector, --set: {error}") from error
