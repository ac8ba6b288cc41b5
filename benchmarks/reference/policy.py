"""Every field of a policy, those of its inner tables too."""

from __future__ import annotations

from dataclasses import Field
from enum import StrEnum
from typing import Any, get_args, get_type_hints

from benchmarks.reference.table import members, shown, span, table
from spikeguard_core.policy.settings import (
    DEFAULT_POLICY,
    ApprovalRule,
    Policy,
    QuietHours,
)
from spikeguard_core.setting_fields import default_of, settings_of
from spikeguard_protocol import Verb

HEAD = """# Policy

Every field of a policy, as `spikeguard policy show` prints it, as TOML or JSON.

What is left out takes its default. What the fields are for: [policy](../policy.md).
"""
ELSEWHERE = {  # fields that are tables of their own: where they stand
    "detection": "[detection settings](detection.md)",
    "approval": "[below](#approvalverb)",
    "quiet": "[below](#quiet)",
}


def page() -> str:
    """The whole page."""
    return "\n".join([
        HEAD,
        _policy(),
        "## `[approval.VERB]`\n",
        f"VERB is one of {members(Verb)}. Without a word of the policy `watch` is `auto`, every "
        "other verb `manual`.\n",
        _table(ApprovalRule),
        "## `[quiet]`\n",
        f"{QuietHours.__doc__}\n",
        _table(QuietHours),
    ])  # fmt: skip


def _policy() -> str:
    rows = []
    for name, one in settings_of(Policy).items():
        limit = one.metadata["limit"]
        rows.append((
            f"`{name}`",
            shown(getattr(DEFAULT_POLICY, name)),
            span(limit.least, limit.most) if limit else "",
            limit.unit if limit else "",
            ": ".join(filter(None, (one.metadata["meaning"], ELSEWHERE.get(name)))),
        ))  # fmt: skip
    return table(("field", "default", "range", "unit", "meaning"), rows)


def _table(kind: type) -> str:
    rows = [
        (f"`{name}`", shown(default_of(one)), _range(kind, one), one.metadata["meaning"])
        for name, one in settings_of(kind).items()
    ]
    return table(("field", "default", "range", "meaning"), rows)


def _range(kind: type, one: Field[Any]) -> str:
    hint = get_type_hints(kind)[one.name]
    for choice in (hint, *get_args(hint)):
        if isinstance(choice, type) and issubclass(choice, StrEnum):
            return members(choice)
    limit = one.metadata["limit"]
    return span(limit.least, limit.most) if limit else ""
