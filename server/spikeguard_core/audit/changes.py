"""What changed between two versions of something that people set, field by field.

What is secret comes here as a hint already, so that no change can tell it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spikeguard_core.notification.channel import Channel
from spikeguard_core.policy.settings import Policy, policy_to_mapping

MAX_REASON = 500  # characters that a person gives for one


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field and its values. None: it was not set, or is no longer. Two that are the same: it
    changed, and what it holds is secret."""

    field: str  # `price_per_hour`, `approval.rollback.mode`
    before: Any
    after: Any


def policy_changes(before: Policy, after: Policy) -> tuple[FieldChange, ...]:
    """What `after` does otherwise."""
    return _between(_settings(before), _settings(after))


def channel_changes(before: Channel | None, after: Channel | None) -> tuple[FieldChange, ...]:
    """What changed of a channel; None: it was not there, or is gone."""
    found = _between(_shown(before), _shown(after))
    if before is None or after is None:
        return found
    told = {change.field for change in found}
    hidden = tuple(
        FieldChange(f"target.{name}", hint, hint)
        for name, hint in after.shown_target().items()
        if before.target.get(name) != after.target[name] and f"target.{name}" not in told
    )
    return tuple(sorted(found + hidden, key=lambda change: change.field))


def _settings(policy: Policy) -> dict[str, Any]:
    plain = policy_to_mapping(policy)
    del plain["version"]
    return plain


def _shown(channel: Channel | None) -> dict[str, Any]:
    if channel is None:
        return {}
    return {"kind": channel.kind.value, "target": channel.shown_target(), **channel.rules()}


def _between(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    old, new = dict(_leaves(before)), dict(_leaves(after))
    each = (FieldChange(name, old.get(name), new.get(name)) for name in sorted(old | new))
    return tuple(change for change in each if change.before != change.after)


def _leaves(plain: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value
