"""The options of `spikeguard replay` that say which policy is asked and what is assumed of the run.

Importing this needs the standard library only.
"""

from __future__ import annotations

import tomllib
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spikeguard_cli.command import CommandFailed

if TYPE_CHECKING:
    from spikeguard_core.policy.settings import Policy
    from spikeguard_replay.advice import Assumed


def configure_policy(parser: ArgumentParser) -> None:
    """Add the options to `parser`."""
    group = parser.add_argument_group("what the policy would have proposed (nothing is done)")
    group.add_argument(
        "--policy", metavar="FILE", help="a policy as TOML, or `default` for the built-in one"
    )
    group.add_argument(
        "--checkpoint-every",
        type=int,
        default=1_000,
        metavar="STEPS",
        help="assume a checkpoint every so many steps (default 1000; 0: none)",
    )
    group.add_argument(
        "--step-time", type=float, metavar="SECONDS", help="time of one step (default: as logged)"
    )


def assumed_of(options: Namespace) -> Assumed:
    """What `options` say of the run; raises `CommandFailed`."""
    from spikeguard_replay.advice import Assumed

    if options.checkpoint_every < 0:
        raise CommandFailed("--checkpoint-every takes steps, 0 or more: 0 = no checkpoint")
    if options.step_time is not None and not 0 < options.step_time < 1e9:
        raise CommandFailed("--step-time takes seconds, more than 0: leave it out if unknown")
    return Assumed(options.checkpoint_every, options.step_time)


def policy_from_options(options: Namespace) -> Policy:
    """The policy that `options` name; raises `CommandFailed`."""
    from spikeguard_core.policy.settings import (
        DEFAULT_POLICY,
        policy_from_mapping,
    )
    from spikeguard_core.setting_fields import PolicyError

    try:
        named = options.policy == "default"
        return DEFAULT_POLICY if named else policy_from_mapping(_toml(Path(options.policy)))
    except PolicyError as error:
        raise CommandFailed(f"--policy {options.policy}: {error}") from error


def _toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise CommandFailed(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, too deep, too many digits
        raise CommandFailed(f"{file} is not TOML: {error}") from error
