"""The policy as data: every threshold by which an incident becomes a proposed command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from spikeguard_core.notification.quiet_hours import QuietHours
from spikeguard_core.setting_fields import (
    SettingError,
    read_settings,
    setting,
    settings_of,
)
from spikeguard_protocol import Verb


class PolicyScope(StrEnum):
    """Whose a policy is."""

    PROJECT = "project"
    RUN = "run"  # one run's own, in force there instead of its project's


class ApprovalMode(StrEnum):
    """Who says yes to a command of one verb."""

    MANUAL = "manual"  # a person
    AUTO = "auto"  # the policy, within a budget and after a cooldown


# Ranges with their units.
_STEPS = (1, 1_000_000, "steps")
_PATIENCE = (0, 1_000_000, "steps")
_PROBABILITY = (0.0, 1.0, "probability")


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """How commands of one verb get approved."""

    mode: ApprovalMode = setting(ApprovalMode.MANUAL, "who says yes")
    budget: int = setting(
        3, "automatic approvals a run gets in 24 hours", 0, 1_000_000, "approvals a run in 24 hours"
    )
    cooldown_s: float = setting(
        1_800.0, "seconds between two automatic approvals", 0.0, 30 * 86_400.0, "seconds"
    )


# Watching changes nothing in the run, so asking a person for it would only cost sleep.
_DEFAULT_APPROVAL: Mapping[Verb, ApprovalRule] = {
    **{verb: ApprovalRule() for verb in Verb},
    Verb.WATCH: ApprovalRule(ApprovalMode.AUTO, budget=1_000, cooldown_s=0.0),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds and habits. Steps are optimizer steps, batches are data positions.

    The defaults come from practice: PaLM (arXiv 2204.02311, section 5.1) went about 100 steps back
    and skipped 200 to 500 batches; where the optimizer's state is suspect, others go 1,000 back.
    """

    version: int = setting(
        1, "counted by the server; a policy that is sent may name the one it replaces", 1, 2**31 - 1
    )
    # when to act
    act_confidence: float = setting(
        0.6, "confidence in the kind from which more than watching is proposed", *_PROBABILITY
    )
    patience_steps: int = setting(
        20, "steps after the onset, before a loss that still climbs is acted on", *_PATIENCE
    )
    lingering_patience_steps: int = setting(
        150, "steps after the peak until one that stays up is acted on", *_PATIENCE
    )
    watch_steps: int = setting(
        200, "steps that an order to watch lasts, until the run is looked at again", *_STEPS
    )
    ask_again_steps: int = setting(
        200, "steps until what nobody answered is proposed again, at least", *_STEPS
    )
    # when it comes back
    lr_factors: tuple[float, ...] = setting(
        (0.5, 1 / 3), "for the first recurrence, the second, ...; each in (0, 1)"
    )
    lr_steps: int = setting(
        500, "steps at the lowered learning rate, before it ramps back", *_STEPS
    )
    most_rollbacks: int = setting(
        3, "rollbacks of one incident; after that a person decides what else", 0, 100, "rollbacks"
    )
    # validity and price
    expires_in_s: float = setting(
        4 * 3_600.0,
        "seconds until a proposal that nobody answers expires",
        1.0,
        30 * 86_400.0,
        "seconds",
    )
    expires_after_steps: int = setting(
        20_000, "steps until it expires, if that comes first", 1, 10**9, "steps"
    )
    price_per_hour: float | None = setting(
        None, "price of an hour of the whole job, in `currency`", 0.0, 1e9, "currency an hour"
    )
    currency: str = setting("USD", "of `price_per_hour`, 1 to 8 characters")
    approval: Mapping[Verb, ApprovalRule] = setting(
        lambda: dict(_DEFAULT_APPROVAL), "who says yes, by verb"
    )
    detection: Mapping[str, Any] = setting(dict, "detector and its settings")
    # people
    escalation: tuple[float, ...] = setting(
        (), "seconds a proposal waits before level 1, 2, ... is told; at most 5"
    )
    quiet: QuietHours | None = setting(None, "hours in which only what cannot wait is told")
    halted: bool = setting(False, "the kill switch: nothing is approved, nothing delivered")
    scope: PolicyScope = PolicyScope.PROJECT  # where it was found; no setting

    def __post_init__(self) -> None:
        if not self.lr_factors or not all(0.0 < factor < 1.0 for factor in self.lr_factors):
            default = "The default is [0.5, 0.333]"
            raise SettingError("lr_factors", "holds numbers in (0, 1)", default)
        waits = self.escalation
        rising = all(earlier < later for earlier, later in pairwise(waits))
        if len(waits) > 5 or not rising or not all(1.0 <= wait <= 7 * 86_400.0 for wait in waits):
            said = "holds at most 5 rising numbers of seconds"
            raise SettingError("escalation", said, "Write [600, 1800]")
        if not 1 <= len(self.currency) <= 8:
            raise SettingError("currency", "takes 1 to 8 characters", "Write a code such as EUR")

    @property
    def name(self) -> str:
        """What proposals and the audit call it."""
        own = " of the run" if self.scope is PolicyScope.RUN else ""
        return f"policy {self.version}{own}"

    def approval_of(self, verb: Verb) -> ApprovalRule:
        """How `verb` gets approved; a verb that the policy does not name needs a person."""
        return self.approval.get(verb, ApprovalRule())


DEFAULT_POLICY = Policy()


def policy_to_mapping(policy: Policy) -> dict[str, Any]:
    """Plain values, as TOML and JSON take them; `policy_from_mapping` reads them back."""
    known = settings_of(Policy)
    return {name: _plain(value) for name, value in asdict(policy).items()
            if name in known and value is not None}  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [*value]
    return value.value if isinstance(value, StrEnum) else value


def policy_from_mapping(plain: Mapping[str, Any]) -> Policy:
    """Read what a person wrote; what is left out keeps its default. Raise `SettingError`."""
    read = read_settings(Policy, plain)
    return replace(read, approval={**_DEFAULT_APPROVAL, **read.approval})


def over(project: Policy, plain: Mapping[str, Any]) -> Policy:
    """The policy of a run: what `plain` leaves out is its project's, verb by verb where it says
    who approves. Raise `SettingError`."""
    usual = policy_to_mapping(project)
    approval = plain.get("approval", {})
    if isinstance(approval, Mapping):
        approval = {**usual["approval"], **approval}
    detection = plain.get("detection", {})
    if isinstance(detection, Mapping):
        detection = {**usual["detection"], **detection}
    return policy_from_mapping({**usual, **plain, "approval": approval, "detection": detection})
