"""What the record says of a change: every field that is another one, and no secret."""

from __future__ import annotations

from typing import Any

from spikeguard_core.audit.changes import FieldChange, channel_changes, policy_changes
from spikeguard_core.notification.channel import Channel, channel_from_mapping
from spikeguard_core.policy.settings import DEFAULT_POLICY, policy_from_mapping

SECRET = "a secret of more than sixteen signs"
TARGET = {"url": "https://hooks.example/path?word=hidden", "secret": SECRET}


def webhook(target: dict[str, str] = TARGET, **rules: Any) -> Channel:
    return channel_from_mapping("lab", "a", {"kind": "webhook", "target": target, **rules})


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


def test_a_channel_tells_its_rules_and_of_its_target_what_may_be_shown() -> None:
    before = webhook(runs=["gpt-*"])
    after = webhook({**TARGET, "url": "https://other.example/"}, cooldown_s=5, runs=[])
    assert channel_changes(before, after) == (
        FieldChange("cooldown_s", 120.0, 5.0),
        FieldChange("runs", ["gpt-*"], []),
        FieldChange("target.url", "https://hooks.example/…", "https://other.example"),
    )


def test_another_secret_is_told_as_changed_and_as_nothing_else() -> None:
    after = webhook({"url": TARGET["url"] + "2", "secret": SECRET[::-1]})
    assert channel_changes(webhook(), after) == (
        FieldChange("target.secret", "…", "…"),
        FieldChange("target.url", "https://hooks.example/…", "https://hooks.example/…"),
    )


def test_a_channel_that_comes_or_goes_is_told_whole_without_its_secrets() -> None:
    made, gone = channel_changes(None, webhook()), channel_changes(webhook(), None)
    assert {c.field: c.after for c in made} == {c.field: c.before for c in gone}
    assert FieldChange("kind", None, "webhook") in made
    assert all(c.before is None for c in made)
    assert "hidden" not in str((made, gone))
    assert SECRET not in str((made, gone))


def test_a_channel_of_another_kind_tells_the_target_that_went() -> None:
    after = channel_from_mapping(
        "lab", "a", {"kind": "pagerduty", "target": {"routing_key": SECRET}}
    )
    found = {c.field: (c.before, c.after) for c in channel_changes(webhook(), after)}
    assert found == {
        "kind": ("webhook", "pagerduty"),
        "target.url": ("https://hooks.example/…", "https://events.pagerduty.com"),
        "target.secret": ("…", None),
        "target.picture": ("none", None),
        "target.routing_key": (None, "…"),
    }
