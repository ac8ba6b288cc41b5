"""The policy as data: every threshold by which an incident becomes a proposed command.

Law: a policy is a frozen value with its unit beside every number; it decides nothing itself. What
a person edits is checked field by field, and the error names field, limit and remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

from spikeguard_core.notification.quiet_hours import QuietHours, read_quiet_hours
from spikeguard_core.policy.own_remedies import OwnRemedy, read_remedies
from spikeguard_core.policy.remedies import Diagnosis
from spikeguard_protocol import ProtocolError, Verb


class PolicyError(ProtocolError):
    """A policy holds a value that it may not. Names the field, the limit and the remedy."""


class PolicyScope(StrEnum):
    """Whose a policy is."""

    PROJECT = "project"
    RUN = "run"  # one run's own, in force there instead of its project's


class ApprovalMode(StrEnum):
    """Who says yes to a command of one verb."""

    MANUAL = "manual"  # a person
    AUTO = "auto"  # the policy, within a budget and after a cooldown


@dataclass(frozen=True, slots=True)
class ApprovalRule:
    """How commands of one verb get approved."""

    mode: ApprovalMode = ApprovalMode.MANUAL  # who says yes
    budget: int = 3  # automatic approvals a run gets in 24 hours
    cooldown_s: float = 1_800.0  # seconds between two automatic approvals


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

    version: int = 1  # counted by the server; a policy that is sent may name the one it replaces
    # when to act
    act_confidence: float = 0.6  # confidence in the kind from which more than watching is proposed
    sure_confidence: float = 0.85  # confidence from which a rise within the noise is acted on too
    patience_steps: int = 20  # steps after the onset, before a loss that still climbs is acted on
    lingering_patience_steps: int = 150  # steps after the peak until one that stays up is acted on
    lingering_patience_share: float = 0.1  # that wait in a short run: this share of its steps
    watch_steps: int = 200  # steps that an order to watch lasts, until the run is looked at again
    calm_steps: int = 5  # finite steps after a dropped update, until the incident closes
    ask_again_steps: int = 200  # steps until what nobody answered is proposed again, at least
    # damage by a few batches
    few_steps: int = 20  # a loss that settles within so many steps of its cause: few batches did it
    few_skip_least: int = 5  # batches that are skipped at least
    few_skip_most: int = 20  # batches that are skipped at most where few batches did it
    near_steps: int = 50  # a target within so many steps before the cause is "just before" it
    # lingering or divergent
    skip_most: int = 500  # batches that are skipped at most, whatever did it
    skip_share: float = 0.05  # that limit in a short run: this share of its steps
    margin_steps: int = 2  # steps between a rollback's target and the cause, at least
    optimizer_back_steps: int = 1_000  # steps to go back where the optimizer's state is suspect
    optimizer_back_share: float = 0.25  # the same in a short run: this share of its steps
    health_horizon_steps: int = 100  # calm steps after it was saved, until a target is healthy
    # when it comes back
    lr_factors: tuple[float, ...] = (
        0.5,
        1 / 3,
    )  # for the first recurrence, the second, ...; each in (0, 1)
    lr_steps: int = 500  # steps at the lowered learning rate, before it ramps back
    most_rollbacks: int = 3  # rollbacks of one incident; after that a person decides what else
    # validity and price
    expires_in_s: float = 4 * 3_600.0  # seconds until a proposal that nobody answers expires
    expires_after_steps: int = 20_000  # steps until it expires, if that comes first
    price_per_hour: float | None = None  # price of an hour of the whole job, in `currency`
    currency: str = "USD"  # of `price_per_hour`, 1 to 8 characters
    approval: Mapping[Verb, ApprovalRule] = field(  # who says yes, by verb
        default_factory=lambda: dict(_DEFAULT_APPROVAL)
    )
    remedies: Mapping[Diagnosis, OwnRemedy] = field(default_factory=dict)  # by cause
    detection: Mapping[str, Any] = field(default_factory=dict)  # detector and its settings
    # people
    escalation: tuple[
        float, ...
    ] = ()  # seconds a proposal waits before level 1, 2, ... is told; at most 5
    quiet: QuietHours | None = None  # hours in which only what cannot wait is told
    halted: bool = False  # the kill switch: nothing is approved, nothing delivered
    scope: PolicyScope = PolicyScope.PROJECT  # where it was found; no setting

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            _check_range(name, getattr(self, name), limit)
        _check_lr_factors(self.lr_factors)
        _check_escalation(self.escalation)
        if self.few_skip_least > self.few_skip_most:
            raise PolicyError("few_skip_least", "is at most few_skip_most", "Swap the two")
        if not 1 <= len(self.currency) <= 8:
            raise PolicyError("currency", "takes 1 to 8 characters", "Write a code such as EUR")

    @property
    def name(self) -> str:
        """What proposals and the audit call it."""
        own = " of the run" if self.scope is PolicyScope.RUN else ""
        return f"policy {self.version}{own}"

    def approval_of(self, verb: Verb) -> ApprovalRule:
        """How `verb` gets approved; a verb that the policy does not name needs a person."""
        return self.approval.get(verb, ApprovalRule())


MOST_BITS = 60  # of a whole number
MOST_FACTORS = 100  # as many as there may be rollbacks of an incident


class Limit(NamedTuple):
    """The range of a number, and its unit."""

    least: float
    most: float
    unit: str = ""


LIMITS: Mapping[str, Limit] = {
    "version": Limit(1, 2**31 - 1),
    "act_confidence": Limit(0.0, 1.0, "probability"),
    "sure_confidence": Limit(0.0, 1.0, "probability"),
    "patience_steps": Limit(0, 1_000_000, "steps"),
    "lingering_patience_steps": Limit(0, 1_000_000, "steps"),
    "lingering_patience_share": Limit(0.0, 1.0, "share"),
    "watch_steps": Limit(1, 1_000_000, "steps"),
    "calm_steps": Limit(1, 10_000, "steps"),
    "ask_again_steps": Limit(1, 1_000_000, "steps"),
    "few_steps": Limit(1, 10_000, "steps"),
    "few_skip_least": Limit(1, 100_000, "batches"),
    "few_skip_most": Limit(1, 100_000, "batches"),
    "near_steps": Limit(1, 100_000, "steps"),
    "skip_most": Limit(1, 1_000_000, "batches"),
    "skip_share": Limit(0.0, 0.5, "share"),
    "margin_steps": Limit(1, 10_000, "steps"),
    "optimizer_back_steps": Limit(1, 1_000_000, "steps"),
    "optimizer_back_share": Limit(0.0, 0.9, "share"),
    "health_horizon_steps": Limit(1, 1_000_000, "steps"),
    "lr_steps": Limit(1, 1_000_000, "steps"),
    "most_rollbacks": Limit(0, 100, "rollbacks"),
    "expires_in_s": Limit(1.0, 30 * 86_400.0, "seconds"),
    "expires_after_steps": Limit(1, 10**9, "steps"),
    "price_per_hour": Limit(0.0, 1e9, "currency an hour"),
}
APPROVAL_LIMITS: Mapping[str, Limit] = {
    "budget": Limit(0, 1_000_000, "approvals a run in 24 hours"),
    "cooldown_s": Limit(0.0, 30 * 86_400.0, "seconds"),
}


def _check_range(name: str, value: float | None, limit: Limit) -> None:
    if value is None:
        return
    least, most, _ = limit
    if not (math.isfinite(value) and least <= value <= most):
        raise PolicyError(name, f"lies in [{least:g}, {most:g}]", f"Got {value}")


def _check_lr_factors(factors: tuple[float, ...]) -> None:
    if not 1 <= len(factors) <= MOST_FACTORS or not all(0.0 < factor < 1.0 for factor in factors):
        raise PolicyError(
            "lr_factors", f"holds 1 to {MOST_FACTORS} numbers in (0, 1)",
            "The default is [0.5, 0.333]",
        )  # fmt: skip


def _check_escalation(waits: tuple[float, ...]) -> None:
    rising = all(earlier < later for earlier, later in pairwise(waits))
    if len(waits) > 5 or not rising or not all(1.0 <= wait <= 7 * 86_400.0 for wait in waits):
        raise PolicyError(
            "escalation", "holds at most 5 rising numbers of seconds", "Write [600, 1800]"
        )


DEFAULT_POLICY = Policy()


def policy_to_mapping(policy: Policy) -> dict[str, Any]:
    """Plain values, as TOML and JSON take them; `policy_from_mapping` reads them back."""
    plain = {name: value for name, value in asdict(policy).items() if value is not None}
    del plain["scope"]
    plain["lr_factors"] = list(policy.lr_factors)
    plain["detection"] = dict(policy.detection)
    plain["escalation"] = list(policy.escalation)
    plain["remedies"] = {word.value: own.plain() for word, own in policy.remedies.items()}
    if policy.quiet is not None:
        quiet = asdict(policy.quiet)
        plain["quiet"] = {**quiet, "days": list(quiet["days"]), "urgent": list(quiet["urgent"])}
    plain["approval"] = {
        verb.value: {
            "mode": rule.mode.value,
            "budget": rule.budget,
            "cooldown_s": rule.cooldown_s,
        }
        for verb, rule in policy.approval.items()
    }
    return plain


def policy_from_mapping(plain: Mapping[str, Any]) -> Policy:
    """Read what a person wrote; what is left out keeps its default. Raise `PolicyError`."""
    _check_digits(plain)
    known = {f.name for f in fields(Policy)} - {"scope"}
    for name in plain:
        if name not in known:
            raise PolicyError(str(name)[:80], "is no setting", f"Known: {', '.join(sorted(known))}")
    tables = ("approval", "detection", "quiet", "remedies")
    values = {name: _read(name, value) for name, value in plain.items() if name not in tables}
    values["remedies"] = read_remedies(plain.get("remedies", {}), PolicyError)
    values["detection"] = _read_detection(plain.get("detection", {}))
    if plain.get("quiet") is not None:
        values["quiet"] = read_quiet_hours(plain["quiet"], PolicyError)
    return Policy(**values, approval=_read_approvals(plain.get("approval", {})))


def _check_digits(plain: Mapping[str, Any]) -> None:
    """Whole numbers are of any length in a document, and can neither be compared nor written."""
    left = [(str(name)[:80], value) for name, value in plain.items()]
    while left:
        name, value = left.pop()
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise PolicyError(name, "holds numbers of 18 digits at most", "Give a smaller one")
        if isinstance(value, Mapping):
            left += [(name, part) for part in value.values()]
        elif isinstance(value, list | tuple):
            left += [(name, part) for part in value]


def over(project: Policy, plain: Mapping[str, Any]) -> Policy:
    """The policy of a run: what `plain` leaves out is its project's, verb by verb where it says
    who approves. Raise `PolicyError`."""
    usual = policy_to_mapping(project)
    approval = plain.get("approval", {})
    if isinstance(approval, Mapping):
        approval = {**usual["approval"], **approval}
    detection = plain.get("detection", {})
    if isinstance(detection, Mapping):
        detection = {**usual["detection"], **detection}
    return policy_from_mapping({**usual, **plain, "approval": approval, "detection": detection})


def _read_detection(plain: Any) -> dict[str, Any]:
    """As it was written: which names there are is for whoever knows the detectors to say."""
    if not isinstance(plain, Mapping):
        raise PolicyError("detection", "takes a table of settings", f"Got {plain!r:.60}")
    return {str(name): value for name, value in plain.items()}


_READERS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "takes a whole number"),
    "float": ((int, float), "takes a number"),
    "float | None": ((int, float, type(None)), "takes a number"),
    "str": ((str,), "takes text"),
    "bool": ((bool,), "is true or false"),
    "tuple[float, ...]": ((list, tuple), "takes a list of numbers"),
}
_TYPE_OF = {f.name: str(f.type) for f in fields(Policy)}


def _read(name: str, value: Any) -> Any:
    kind = _TYPE_OF[name]
    accepted, limit = _READERS[kind]
    if not any(type(value) is one for one in accepted):
        raise PolicyError(name, limit, f"Got {value!r:.60}")
    if kind == "tuple[float, ...]":
        return tuple(_number(f"{name}[{i}]", item) for i, item in enumerate(value))
    return value if value is None or not kind.startswith("float") else _number(name, value)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PolicyError(name, "takes a number", f"Got {value!r:.60}")
    return float(value)


_APPROVAL_SETTINGS = "mode, budget, cooldown_s"


def _read_approvals(plain: Any) -> dict[Verb, ApprovalRule]:
    if not isinstance(plain, Mapping):
        raise PolicyError("approval", "takes a table of verbs", f"Got {plain!r:.60}")
    given = {_read_verb(word): _read_approval(f"approval.{word}", v) for word, v in plain.items()}
    return {**_DEFAULT_APPROVAL, **given}


def _read_verb(word: Any) -> Verb:
    try:
        return Verb(word)
    except ValueError:
        raise PolicyError(
            f"approval.{word!s:.40}", "is no verb", f"Known: {', '.join(Verb)}"
        ) from None


def _read_approval(path: str, plain: Any) -> ApprovalRule:
    if not isinstance(plain, Mapping):
        raise PolicyError(path, f"takes {_APPROVAL_SETTINGS}", f"Got {plain!r:.60}")
    for name in plain:
        if name not in _APPROVAL_SETTINGS.split(", "):
            raise PolicyError(
                f"{path}.{name!s:.40}", "is no setting", f"Known: {_APPROVAL_SETTINGS}"
            )
    budget, (least, most, _) = plain.get("budget", ApprovalRule().budget), APPROVAL_LIMITS["budget"]
    if type(budget) is not int or not least <= budget <= most:
        raise PolicyError(
            f"{path}.budget", f"takes a whole number from {least} to {most}", f"Got {budget!r:.60}"
        )
    cooldown_s = _number(f"{path}.cooldown_s", plain.get("cooldown_s", ApprovalRule().cooldown_s))
    least, most, _ = APPROVAL_LIMITS["cooldown_s"]
    if not least <= cooldown_s <= most:
        limit = f"lies in [{least:.0f}, {most:.0f}] seconds"
        raise PolicyError(f"{path}.cooldown_s", limit, f"Got {cooldown_s}")
    mode = _read_mode(path, plain.get("mode", ApprovalMode.MANUAL))
    return ApprovalRule(mode, budget, cooldown_s)


def _read_mode(path: str, word: Any) -> ApprovalMode:
    try:
        return ApprovalMode(word)
    except ValueError:
        raise PolicyError(
            f"{path}.mode", f"is one of {', '.join(ApprovalMode)}", f"Got {word!r:.60}"
        ) from None
