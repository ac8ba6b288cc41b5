"""The policy as data: every threshold by which an incident becomes a proposed command, and the
settings of detection by name."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from spikeguard_core.detection.norms import LEADING
from spikeguard_core.detection.own_signals import MOST_OWN, Direction, Opens, OwnChoice
from spikeguard_core.detection.settings import DetectionSettings
from spikeguard_core.monitor.state import DetectorChoice
from spikeguard_core.setting_fields import (
    SettingError,
    read_settings,
    setting,
    settings_of,
)
from spikeguard_protocol import Kind, Signal, Verb
from spikeguard_protocol.identity import NAME_PATTERN

DAY_S = 86_400
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")

USUAL = DetectionSettings()


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
class QuietHours:
    """From `begin` to `end` by the clocks of `timezone`, over midnight if `end` is the earlier."""

    begin: str = setting("22:00", "HH:MM")
    end: str = setting("07:00", "HH:MM, on the next day if it is the earlier")
    timezone: str = setting("UTC", "a name of the IANA database")
    days: tuple[str, ...] = setting(DAYS, "on which they begin")
    urgent: tuple[str, ...] = setting(
        (Kind.DIVERGENT.value,), "incidents of these kinds are told at once"
    )

    def __post_init__(self) -> None:
        for name in ("begin", "end"):
            if not _CLOCK.fullmatch(getattr(self, name)):
                raise SettingError(f"quiet.{name}", "is written HH:MM", "Write 22:00")
        if self.begin == self.end:
            raise SettingError("quiet.end", "differs from begin", "Leave quiet hours out")
        for name, known in (("days", DAYS), ("urgent", tuple(Kind))):
            if not set(getattr(self, name)) <= set(known):
                raise SettingError(
                    f"quiet.{name}", f"takes a list of {', '.join(known)}", "Of these"
                )

    def left_s(self, weekday: int, second: int) -> float | None:
        """Seconds until they end; None outside them. `weekday` is 0 on Mondays."""
        begin, end = (_seconds_of(clock) for clock in (self.begin, self.end))
        lasts = (end - begin) % DAY_S
        for ago in (0, 1):  # those that began today, or yesterday
            since = second - begin + ago * DAY_S
            if 0 <= since < lasts and DAYS[(weekday - ago) % 7] in self.days:
                return float(lasts - since)
        return None

    def holds(self, kind: Kind | None) -> bool:
        """Whether an incident of `kind` waits; None, the run itself, never does."""
        return kind is not None and kind.value not in self.urgent


def _seconds_of(clock: str) -> int:
    """`07:30` as seconds since midnight."""
    hours, minutes = clock.split(":")
    return int(hours) * 3600 + int(minutes) * 60


@dataclass(frozen=True, slots=True)
class Policy:
    """Thresholds and habits. Steps are optimizer steps."""

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
        waits = [wait for wait in self.escalation if 1.0 <= wait <= 7 * 86_400.0]
        if len(waits) > 5 or sorted({*waits}) != [*self.escalation]:
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
    known, plain = settings_of(Policy), json.loads(json.dumps(asdict(policy)))
    return {name: one for name, one in plain.items() if name in known and one is not None}


def policy_from_mapping(plain: Mapping[str, Any]) -> Policy:
    """Read what a person wrote; what is left out keeps its default. Raise `SettingError`."""
    read = read_settings(Policy, plain)
    return replace(read, approval={**_DEFAULT_APPROVAL, **read.approval})


def over(project: Policy, plain: Mapping[str, Any]) -> Policy:
    """The policy of a run: what `plain` leaves out is its project's, verb by verb where it says
    who approves. Raise `SettingError`."""
    usual = policy_to_mapping(project)
    named = (name for name in ("approval", "detection") if isinstance(plain.get(name), Mapping))
    tables = {name: {**usual[name], **plain[name]} for name in named}
    return policy_from_mapping({**usual, **plain, **tables})


@dataclass(frozen=True, slots=True)
class SignalSettings:
    """One signal: a leading one has a `precursor_threshold` alone."""

    direction: Direction | None = setting(None, "which way it has to move; needed without a limit")
    above: float | None = setting(
        None, "beyond this value it is away, in the signal's own unit", -math.inf
    )
    below: float | None = setting(None, "the same on the other side", -math.inf)
    rows: int = setting(2, "rows in a row beyond a limit that it takes", 1, 10_000, "rows")
    opens: Opens = setting(Opens.PRECURSOR, "what it opens when it is away")
    precursor_threshold: float | None = setting(
        None, "distance from its baseline at which it is away; unset: that of all", 2.0, 1_000.0,
        "deviations",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Detection:
    """Thresholds and rows that a user may change."""

    threshold: float = setting(
        USUAL.suspect_z,
        "distance above the level that is a jump; the rows that confirm it and rows that stand out "
        "alone keep their proportion to it (4.4 to 6, 8 to 6)", 2.0, 1_000.0, "deviations",
    )  # fmt: skip
    confirm_rows: int = setting(
        USUAL.confirm_rows, "rows in a row that make a jump an incident", 1, 20, "rows"
    )
    warm_up_rows: int = setting(USUAL.watchable_after, "until the first judgement", 8, 128, "rows")
    lift_threshold: float = setting(
        USUAL.lift_z,
        "distance of the median of 8 rows above the 32 rows before them that is an incident: more "
        "is less sensitive", 1.0, 1_000_000.0, "deviations",
    )  # fmt: skip
    slow_rise: float = setting(
        USUAL.slow_part,
        "how far the smoothed loss rises above its own best until a slow rise is an incident",
        0.005, 1_000_000.0, "part of the loss",
    )  # fmt: skip
    band: float = setting(
        USUAL.band_z,
        "half width of the band about the trend: an incident is over when the loss is back in it",
        1.0, 100.0, "deviations",
    )  # fmt: skip
    precursor_threshold: float = setting(
        USUAL.precursor_z,
        "distance at which a leading signal (norms of gradient, update, weights, second moment) is "
        "a precursor; `[detection.signals.grad_norm]` sets it for one of them", 2.0, 1_000.0,
        "deviations",
    )  # fmt: skip
    signals: Mapping[str, SignalSettings] = setting(dict, "by name of a signal")


def choose(plain: Mapping[str, Any], path: str = "") -> DetectorChoice:
    """What `plain` chooses of the settings of `Detection`; raises `SettingError`. `path` stands
    before the name of a field in an error."""
    read = read_settings(Detection, plain, path)
    _check_signals(read.signals, plain.get("signals", {}), f"{path}signals")
    part = read.threshold / USUAL.suspect_z
    settings = replace(
        USUAL,
        suspect_z=read.threshold,
        confirm_z=USUAL.confirm_z * part,
        run_z=USUAL.run_z * part,
        outlier_z=USUAL.outlier_z * part,
        confirm_rows=read.confirm_rows,
        watchable_after=read.warm_up_rows,
        lift_z=read.lift_threshold,
        long_lift_z=read.lift_threshold * USUAL.long_lift_z / USUAL.lift_z,
        slow_part=read.slow_rise,
        band_z=read.band,
        precursor_z=read.precursor_threshold,
    )
    thresholds = {
        name: one.precursor_threshold
        for name, one in read.signals.items()
        if one.precursor_threshold is not None
    }
    own = {
        name: OwnChoice(one.direction, one.opens, one.above, one.below, None, one.rows)
        for name, one in read.signals.items()
        if name not in LEADING
    }
    return DetectorChoice(settings, thresholds, own)


def _check_signals(
    signals: Mapping[str, SignalSettings], plain: Mapping[str, Any], path: str
) -> None:
    for name, one in signals.items():
        where = f"{path}.{name!s:.60}"
        known = {"precursor_threshold"} if name in LEADING else set(settings_of(SignalSettings))
        if not plain[name] or not set(plain[name]) <= known:
            takes = ", ".join(sorted(known))
            raise SettingError(where, f"takes a table of {takes}", f"Got {plain[name]!r:.60}")
        if name == Signal.LOSS:
            raise SettingError(where, "is judged always", "Its settings: threshold, …")
        if name in LEADING:
            continue
        if not NAME_PATTERN.fullmatch(name):
            limit = "is no name: 1 to 64 of letters, digits, `.`, `_`, `-`"
            raise SettingError(where, limit, "Name a signal as guard.log does")
        if one.direction is None and one.above is None and one.below is None:
            raise SettingError(
                f"{where}.direction",
                f"is one of {', '.join(Direction)}: which way it has to move, where it has no "
                "limit `above` or `below`",
                "Got None",
            )
    if sum(name not in LEADING for name in signals) > MOST_OWN:
        raise SettingError(path, f"takes at most {MOST_OWN} of your own", "Name fewer")
