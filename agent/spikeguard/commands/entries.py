"""What a journal's entries say of an order, a lowered rate and a mitigation."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from spikeguard.optim.lr_scale import LrScale
from spikeguard.state.lineage import Abandonment, Lineage, plain_lineage, read_lineage
from spikeguard_protocol import (
    Action,
    BatchRange,
    CommandResult,
    ProtocolError,
    ResultState,
    SegmentId,
    Verb,
    from_json,
    verb_of,
)
from spikeguard_protocol.orders import check_mitigation


@dataclass(frozen=True, slots=True)
class Scaling:
    """The learning rate's scale from the end of `lineage` on, once `command` was carried out."""

    command: str
    lineage: Lineage
    scale: LrScale | None
    asked: bool  # the command lowers it; otherwise it came back with a rollback's target

    def plain(self) -> dict[str, Any]:
        """For the file."""
        scale = self.scale.plain() if self.scale is not None else None
        return {"lineage": plain_lineage(self.lineage), "scale": scale, "asked": self.asked}

    @classmethod
    def read(cls, command: str, plain: dict[str, Any]) -> Scaling:
        """Back from the file."""
        scale = LrScale.read(plain["scale"]) if plain["scale"] is not None else None
        return cls(command, read_lineage(plain["lineage"]), scale, plain["asked"])


@dataclass(frozen=True, slots=True)
class Applying:
    """The mitigation `name` in the `steps` steps after step `start`, where `lineage` ends."""

    command: str
    lineage: Lineage
    name: str
    start: int
    steps: int

    @property
    def end(self) -> int:
        """The last step that is made with it."""
        return self.start + self.steps

    def plain(self) -> list[Any]:
        """For the file."""
        return [plain_lineage(self.lineage), self.name, self.start, self.steps]

    @classmethod
    def read(cls, command: str, plain: list[Any]) -> Applying:
        """Back from the file."""
        lineage, name, start, steps = plain
        if type(start) is not int or type(steps) is not int:
            raise ValueError("a step is no whole number")
        return cls(command, read_lineage(lineage), check_mitigation("name", name), start, steps)


@dataclass(frozen=True, slots=True)
class Begun:
    """What `command` changes, written ahead at `step`."""

    command: str
    step: int
    skip: BatchRange | None = None
    abandoned: tuple[Abandonment, ...] = ()
    scaling: Scaling | None = None
    applying: Applying | None = None

    def plain(self) -> dict[str, Any]:
        """For the file."""
        skip = self.skip
        return {
            "command": self.command,
            "step": self.step,
            "skip": [skip.first, skip.end] if skip is not None else None,
            "abandoned": [[a.segment.attempt, a.segment.number, a.after] for a in self.abandoned],
            "scaling": self.scaling.plain() if self.scaling is not None else None,
            **({"applying": self.applying.plain()} if self.applying is not None else {}),
        }

    @classmethod
    def read(cls, plain: dict[str, Any]) -> Begun:
        """Back from the file; raise for what was never written so: the loop would meet it later."""
        command, step, skip = plain["command"], plain["step"], plain["skip"]
        CommandResult(command, ResultState.FAILED, "", step)  # as a restart tells it
        left = [Abandonment(SegmentId(a, n), after) for a, n, after in plain["abandoned"]]
        if any(type(n) is not int for n in (step, *(skip or ()), *(each.after for each in left))):
            raise ValueError("a step or a position is no whole number")
        scaling, applying = plain.get("scaling"), plain.get("applying")
        return cls(
            command,
            step,
            BatchRange(*skip) if skip else None,
            tuple(
                Abandonment(SegmentId(a, number), after) for a, number, after in plain["abandoned"]
            ),
            Scaling.read(command, scaling) if scaling else None,
            Applying.read(command, applying) if applying else None,
        )


def past_orders(entries: list[dict[str, Any]]) -> list[tuple[Verb, float]]:
    """What was ordered and when, by the monotonic clock of this process.

    No entry is later than one behind it, or than now: one that says so was dated by a clock that
    was ahead, and would count for as long as that was.
    """
    wall, steady, found = time.time(), time.monotonic(), list[tuple[Verb, float]]()
    latest = wall
    for entry in reversed(entries):
        if (verb := _verb_in(entry)) is not None:
            latest = min(latest, float(entry["at"]))
            found.append((verb, steady - (wall - latest)))
    return found[::-1]


def _verb_in(entry: dict[str, Any]) -> Verb | None:
    """What was ordered, where the entry says it and when."""
    action, at = entry.get("action"), entry.get("at")
    if action is None or not isinstance(at, int | float) or not abs(at) < 1e12:
        return None
    try:
        return verb_of(from_json(Action, action))
    except ProtocolError:  # of a newer release
        return None
