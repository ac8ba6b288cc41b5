"""What changed between two versions of something that people set, field by field.

What is secret comes here as a hint already, so that no change can tell it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from spikeguard_core.diagnosis.change_effect import Changed, changes_between
from spikeguard_core.notification.channel import Channel
from spikeguard_core.policy.settings import Policy, policy_to_mapping

MAX_REASON = 500  # characters that a person gives for one


def policy_changes(before: Policy, after: Policy) -> tuple[Changed, ...]:
    """What `after` does otherwise."""
    old, new = (dict(_leaves(policy_to_mapping(policy))) for policy in (before, after))
    return changes_between(old, {**new, "version": old["version"]})


def channel_changes(before: Channel | None, after: Channel | None) -> tuple[Changed, ...]:
    """What changed of a channel; None: it was not there, or is gone."""
    found = changes_between(_shown(before), _shown(after))
    if before is None or after is None:
        return found
    told = {change.field for change in found}
    hidden = tuple(
        Changed(f"target.{name}", hint, hint)
        for name, hint in after.shown_target().items()
        if before.target.get(name) != after.target[name] and f"target.{name}" not in told
    )
    return tuple(sorted(found + hidden, key=lambda change: change.field))


def _shown(channel: Channel | None) -> dict[str, Any]:
    if channel is None:
        return {}
    shown = {"kind": channel.kind.value, "target": channel.shown_target(), **channel.rules()}
    return dict(_leaves(shown))


def _leaves(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
