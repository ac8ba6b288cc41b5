"""What the record says of a change: every field that is another one, and no secret."""

from __future__ import annotations

from typing import Any

from spikeguard_core.audit.changes import FieldChange, policy_changes
from spikeguard_core.policy.settings import DEFAULT_POLICY, policy_from_mapping


def test_a_policy_tells_every_setting_that_changed_and_no_other() -> None:
    after = policy_from_mapping(
        {
            "version": 7,
            "price_per_hour": 98.0,
            "approval": {"rollback": {"mode": "auto"}},
            "quiet": {"begin": "21:00"},
            "remedies": {"bad_batch": {"sure": 0.9}},
        }
    )
    found = {change.field: (change.before, change.after) for change in _told(after)}
    assert found == {
        "price_per_hour": (None, 98.0),
        "approval.rollback.mode": ("manual", "auto"),
        "remedies.bad_batch.sure": (None, 0.9),
        "quiet.begin": (None, "21:00"),
        "quiet.end": (None, "07:00"),
        "quiet.timezone": (None, "UTC"),
        "quiet.days": (None, ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]),
        "quiet.urgent": (None, ["divergent"]),
    }
    back = policy_changes(after, DEFAULT_POLICY)
    assert {c.field: (c.after, c.before) for c in back} == found
    assert policy_changes(after, after) == ()


def _told(after: Any) -> tuple[FieldChange, ...]:
    return policy_changes(DEFAULT_POLICY, after)
