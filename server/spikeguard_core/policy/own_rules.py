"""A project's own rules: what they propose in place of the policy's proposal.

Law: pure. The first rule whose conditions all hold decides, and the proposal says which it was. No
rule reaches past what is in flight, is being judged or is closed, none makes a rollback where the
policy finds none worth it, and none can order what the attempt cannot do: it may do less, or
something gentler, or change how a rollback goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from spikeguard_core.lifecycle.command_life import EXECUTED
from spikeguard_core.policy.situation import Situation
from spikeguard_protocol import (
    Action,
    Cause,
    CheckpointNow,
    Kind,
    ProtocolError,
    Rollback,
    ScaleLr,
    Stop,
    Watch,
)
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_protocol.phrases import in_paragraphs, paragraphs

MOST_RULES = 50
MOST_SIGNALS = 20  # of a rule


class Does(StrEnum):
    """What a rule wants."""

    USUAL = "usual"  # what the policy proposes; a rollback with the rule's learning rate
    NOTHING = "nothing"  # no proposal is made
    WATCH = "watch"  # look again after `steps`
    CHECKPOINT_NOW = "checkpoint_now"  # save a checkpoint
    SCALE_LR = "scale_lr"  # multiply the learning rate by `lr_factor`, or by 0.5, for `steps`
    STOP = "stop"  # end the attempt on all ranks


@dataclass(frozen=True, slots=True)
class OwnRule:
    """Conditions, all of which have to hold, and what is wanted then. Left out: any."""

    do: Does  # what is wanted then
    kinds: tuple[Kind, ...] = ()  # the incident is of one of these
    confidence: float = 0.0  # of the kind, at least
    causes: tuple[Cause, ...] = ()  # the likeliest is one of these
    cause_confidence: float = 0.0  # of that, at least
    attempts: int = 0  # commands that were carried out for this incident, at least
    attempts_most: int | None = None  # the same, at most
    recurrences: int = 0  # times it came back after a command, at least
    signals: tuple[str, ...] = ()  # one of these moved
    warned: bool | None = None  # whether another signal moved before the loss
    lr_factor: float | None = None  # for scale_lr, and for a usual rollback
    steps: int = 200  # of watching, or at the lowered learning rate
    why: str = ""  # stands in the proposal, at most 300 characters

    def holds(self, situation: Situation) -> bool:
        """Whether every condition does."""
        incident = situation.incident
        done = sum(past.state in EXECUTED for past in situation.of_incident)
        return (
            (not self.kinds or incident.kind in self.kinds)
            and incident.confidence >= self.confidence
            and self._blames(situation)
            and done >= self.attempts
            and (self.attempts_most is None or done <= self.attempts_most)
            and incident.recurrences >= self.recurrences
            and (not self.signals or any(name in incident.first_moves for name in self.signals))
            and self.warned in (None, _warned(situation))
        )

    def _blames(self, situation: Situation) -> bool:
        if not self.causes:
            return True
        first = next(iter(situation.incident.causes), None)
        if first is None:
            return False
        return first.cause in self.causes and first.confidence >= self.cause_confidence

    def action(self, usual: Action | None) -> Action | None:
        """What it wants, `usual` being what the policy would propose."""
        match self.do:
            case Does.NOTHING:
                return None
            case Does.WATCH:
                return Watch(self.steps)
            case Does.CHECKPOINT_NOW:
                return CheckpointNow()
            case Does.SCALE_LR:
                return ScaleLr(self.lr_factor or 0.5, self.steps)
            case Does.STOP:
                return Stop()
            case Does.USUAL:
                return self._gentler(usual)

    def _gentler(self, usual: Action | None) -> Action | None:
        if not isinstance(usual, Rollback) or self.lr_factor is None:
            return usual
        return replace(usual, lr_factor=self.lr_factor, lr_steps=self.steps, lr_cap=None)

    def plain(self) -> dict[str, Any]:
        """As `read_rules` reads it, without what is left at its default."""
        usual = OwnRule(self.do)
        found = {
            name: value
            for name, value in asdict(self).items()
            if name == "do" or value != getattr(usual, name)
        }
        return {name: _words(value) for name, value in found.items()}


def _words(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    return [_words(item) for item in value] if isinstance(value, tuple) else value


def _warned(situation: Situation) -> bool:
    moves = situation.incident.first_moves
    onset = moves.get("loss", situation.incident.onset_step)
    return any(step < onset for name, step in moves.items() if name != "loss")


def read_rules(plain: Any, error: type[ProtocolError]) -> tuple[OwnRule, ...]:
    """Read what a person wrote; raise `error` naming the rule, the field and the limit."""
    if not isinstance(plain, list | tuple) or len(plain) > MOST_RULES:
        raise error("rules", f"takes a list of at most {MOST_RULES} rules", "Write [[rules]]")
    return tuple(_read(f"rules[{place}]", one, error) for place, one in enumerate(plain))


_KNOWN = tuple(entry.name for entry in fields(OwnRule))


def _read(place: str, plain: Any, error: type[ProtocolError]) -> OwnRule:
    if not isinstance(plain, Mapping):
        raise error(place, "is a table", f"Known: {', '.join(_KNOWN)}")
    for name in plain:
        if name not in _KNOWN:
            raise error(f"{place}.{name!s:.40}", "is no setting", f"Known: {', '.join(_KNOWN)}")
    return OwnRule(**{name: _value(f"{place}.{name}", name, plain.get(name), error)
                      for name in ("do", *plain)})  # fmt: skip


RANGES: Mapping[str, tuple[float, float]] = {
    "confidence": (0.0, 1.0),
    "cause_confidence": (0.0, 1.0),
    "lr_factor": (0.001, 0.999),
    "attempts": (0, 100),
    "attempts_most": (0, 100),
    "recurrences": (0, 100),
    "steps": (1, 1_000_000),
}
_WHOLE = frozenset({"attempts", "attempts_most", "recurrences", "steps"})
_SETS: Mapping[str, type[StrEnum]] = {"kinds": Kind, "causes": Cause}


def _value(place: str, name: str, value: Any, error: type[ProtocolError]) -> Any:
    if name == "do":
        return _word(place, value, Does, error)
    if name in _SETS:
        if not isinstance(value, list | tuple):
            raise error(place, "takes a list of words", f"Known: {', '.join(_SETS[name])}")
        return tuple(_word(place, word, _SETS[name], error) for word in value)
    if name == "signals":
        return _signals(place, value, error)
    if name == "warned":
        return _checked(place, value, isinstance(value, bool), "is true or false", error)
    if name == "why":
        good = isinstance(value, str) and len(value) <= 300
        return _checked(place, value, good, "takes text of at most 300 characters", error)
    least, most = RANGES[name]
    kinds = (int,) if name in _WHOLE else (int, float)
    good = type(value) in kinds and least <= value <= most
    return _checked(place, value, good, f"lies in [{least:g}, {most:g}]", error)


def _signals(place: str, value: Any, error: type[ProtocolError]) -> tuple[str, ...]:
    named = isinstance(value, list | tuple) and len(value) <= MOST_SIGNALS
    good = named and all(isinstance(name, str) and NAME_PATTERN.fullmatch(name) for name in value)
    limit = f"takes a list of at most {MOST_SIGNALS} names of signals"
    return tuple(_checked(place, value, good, limit, error))


def _checked(place: str, value: Any, good: bool, limit: str, error: type[ProtocolError]) -> Any:
    if not good:
        raise error(place, limit, f"Got {value!r:.60}")
    return value


def _word(place: str, value: Any, words: type[StrEnum], error: type[ProtocolError]) -> Any:
    try:
        return words(value)
    except ValueError:
        raise error(place, f"is one of {', '.join(words)}", f"Got {value!r:.60}") from None


def by_own_rule(
    usual: Action | None, reason: str, situation: Situation, rules: tuple[OwnRule, ...]
) -> tuple[Action | None, str]:
    """What the first rule that holds wants instead of `usual`, and why; unchanged if none does."""
    for number, rule in enumerate(rules, 1):
        if rule.holds(situation):
            told = f"Rule {number} of the policy: {rule.why or rule.do.value}."
            return rule.action(usual), in_paragraphs(told, *paragraphs(reason))
    return usual, reason
