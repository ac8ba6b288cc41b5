"""What can be done in a job: skip, clip, go back, lower the rate; if not, why, and what helps.

It travels in the settings of `AttemptStarted`, one text an entry: `ability.rollback` holds the
answer, `ability.rollback.reason`, `.remedy` and `.cost` the sentences that are not empty. A server
that knows no abilities keeps and shows them as settings, an agent that knows none sends none.

An ability is checked when it is made; what is read from settings never raises, an entry that says
nothing known is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from spikeguard_protocol.errors import ProtocolError
from spikeguard_protocol.messages import MAX_TEXT
from spikeguard_protocol.orders import MITIGATION_PATTERN
from spikeguard_protocol.vocabulary import Answer

PREFIX = "ability."
BY_RESTART = "the job ends with exit status 76 and has to be started again"  # cost of a rollback
MITIGATIONS = "mitigations"  # the entry that holds what a job can switch on: names and costs
MOST_MITIGATIONS = 8
MAX_COST = 160  # characters
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SENTENCES = ("reason", "remedy", "cost")


@dataclass(frozen=True, slots=True)
class Ability:
    """One row: what, whether, why, what to do about it, and what it costs."""

    name: str  # skip_update, clip, skip_batches, rollback, scale_lr, rewind_from_memory, ...
    answer: Answer
    reason: str = ""  # why not, or on what it rests
    remedy: str = ""  # what the person who owns the job can do; empty: nothing needs doing
    cost: str = ""  # what it takes of the job, or what it loses

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ProtocolError(
                "name", "takes 1 to 32 of a-z, 0-9 and _", f"Got {self.name[:80]!r}"
            )
        for sentence in _SENTENCES:
            if len(getattr(self, sentence)) > MAX_TEXT:
                raise ProtocolError(sentence, f"takes at most {MAX_TEXT} characters", "Shorten it")


def abilities_to_settings(abilities: Iterable[Ability]) -> dict[str, str]:
    """The entries that stand for `abilities` in the settings of an attempt."""
    told: dict[str, str] = {}
    for ability in abilities:
        told[f"{PREFIX}{ability.name}"] = ability.answer.value
        for sentence in _SENTENCES:
            if text := getattr(ability, sentence):
                told[f"{PREFIX}{ability.name}.{sentence}"] = text
    return told


def abilities_from_settings(settings: Mapping[str, str]) -> tuple[Ability, ...]:
    """The abilities in `settings`, by name."""
    found = (_ability(key, settings) for key in sorted(settings) if key.startswith(PREFIX))
    return tuple(ability for ability in found if ability is not None)


def without_abilities(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that are no abilities."""
    return {key: text for key, text in settings.items() if not key.startswith(PREFIX)}


def mitigations_to_settings(costs: Mapping[str, str]) -> dict[str, str]:
    """The entry that stands for what the job has registered, name to cost."""
    return {MITIGATIONS: json.dumps(dict(costs))} if costs else {}


def mitigations_from_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Name to cost, in the order of their registration; what cannot be read is none."""
    try:
        told = json.loads(settings.get(MITIGATIONS, "{}"))
    except ValueError:
        return {}
    if not isinstance(told, dict):
        return {}
    known = islice(filter(MITIGATION_PATTERN.fullmatch, told), MOST_MITIGATIONS)
    return {name: str(told[name])[:MAX_COST] for name in known}


def _ability(key: str, settings: Mapping[str, str]) -> Ability | None:
    name, answer = key.removeprefix(PREFIX), settings[key]
    if not _NAME.fullmatch(name) or answer not in set(Answer):
        return None
    told = {s: settings.get(f"{key}.{s}", "")[:MAX_TEXT] for s in _SENTENCES}
    return Ability(name, Answer(answer), **told)
