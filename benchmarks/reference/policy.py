"""Every field of a policy, those of its inner tables too."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from enum import StrEnum
from typing import Any

from benchmarks.reference.source import meaning_of
from benchmarks.reference.table import shown, span, table
from spikeguard_core.notification.quiet_hours import QuietHours
from spikeguard_core.policy import own_remedies
from spikeguard_core.policy.own_remedies import OwnRemedy
from spikeguard_core.policy.remedies import GoBack, Rate, Skip
from spikeguard_core.policy.settings import (
    APPROVAL_LIMITS,
    DEFAULT_POLICY,
    LIMITS,
    ApprovalMode,
    ApprovalRule,
    Policy,
)
from spikeguard_protocol import Verb

HEAD = """# Policy

Every field of a policy, as `spikeguard policy show` prints it, as TOML or JSON.

What is left out takes its default; a value outside its range is refused with the field, the limit
and the remedy. What the fields are for: [policy](../policy.md).
"""
ELSEWHERE = {  # fields that are tables of their own: where they stand
    "detection": "[detection settings](detection.md)",
    "approval": "[below](#approvalverb)",
    "remedies": "[below](#remediescause)",
    "quiet": "[below](#quiet)",
}
_CHOICES: dict[str, type[StrEnum]] = {"back": GoBack, "skip": Skip, "again": Skip, "rate": Rate}


def page() -> str:
    """The whole page."""
    return "\n".join([
        HEAD,
        _policy(),
        "## `[approval.VERB]`\n",
        f"VERB is one of {_words(Verb)}. Without a word of the policy `watch` is `auto`, every "
        "other verb `manual`.\n",
        _table(ApprovalRule, dict(APPROVAL_LIMITS), {"mode": ApprovalMode}),
        "## `[remedies.CAUSE]`\n",
        "Changes of what a [cause](causes.md) calls for; what is left out stays as it is there.\n",
        _table(OwnRemedy, own_remedies.RANGES, _CHOICES),
        "## `[quiet]`\n",
        f"{QuietHours.__doc__}\n",
        _table(QuietHours, {}, {}),
        "## What the words do\n",
        *(_choices(kind) for kind in (ApprovalMode, GoBack, Skip, Rate)),
    ])  # fmt: skip


def _policy() -> str:
    rows = []
    for one in fields(Policy):
        if one.name == "scope":  # says where the policy was found
            continue
        limit = LIMITS.get(one.name)
        rows.append((
            f"`{one.name}`",
            shown(getattr(DEFAULT_POLICY, one.name)),
            span(limit.least, limit.most) if limit else "",
            limit.unit if limit else "",
            ": ".join(filter(None, (meaning_of(Policy, one.name), ELSEWHERE.get(one.name)))),
        ))  # fmt: skip
    return table(("field", "default", "range", "unit", "meaning"), rows)


def _table(kind: type, ranges: dict[str, Any] | Any, choices: dict[str, type[StrEnum]]) -> str:
    rows = [
        (
            f"`{one.name}`", shown(_default(one)), _range(one.name, ranges, choices),
            meaning_of(kind, one.name),
        )
        for one in fields(kind)
    ]  # fmt: skip
    return table(("field", "default", "range", "meaning"), rows)


def _default(one: Field[Any]) -> object:
    return None if one.default is MISSING else one.default


def _range(name: str, ranges: dict[str, Any], choices: dict[str, type[StrEnum]]) -> str:
    if name in choices:
        return _words(choices[name])
    return span(*ranges[name][:2]) if name in ranges else ""


def _words(kind: type[StrEnum]) -> str:
    return ", ".join(f"`{one.value}`" for one in kind)


def _choices(kind: type[StrEnum]) -> str:
    known = [(f"`{one.value}`", meaning_of(kind, one.name)) for one in kind]
    return f"{kind.__doc__}\n\n{table(('word', 'meaning'), known)}"
