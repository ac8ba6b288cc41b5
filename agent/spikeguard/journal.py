"""The record outside the checkpoints: commands, skips, abandoned stretches, lowered rates.

Append-only JSON lines, each durable (fsync) before the act it speaks of counts as done. One line
says all that a command changes, so a crash leaves a command done or not, never in between.
Law: rank 0 writes; every attempt reads it before it trains; a torn line is as if never written,
and an entry that could not be made durable is taken back. What the journal says survives any
checkpoint: data once skipped stays skipped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spikeguard import line_files
from spikeguard.errors import AttachError
from spikeguard.learning_rate import LrScale
from spikeguard.ledger import Ledger
from spikeguard.lineage import (
    Abandonment,
    Lineage,
    is_abandoned,
    plain_lineage,
    read_lineage,
)
from spikeguard_protocol import (
    BatchRange,
    CommandResult,
    Order,
    ResultState,
    RunId,
    SegmentId,
    SegmentPoint,
    from_json,
    to_json,
)


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
        scale = LrScale(**plain["scale"]) if plain["scale"] is not None else None
        return cls(command, read_lineage(plain["lineage"]), scale, plain["asked"])


REPEATED = 16  # newest results of earlier attempts that an attempt tells again


class WrittenOnly(Exception):
    """An entry is durable, so the next start obeys it, but this process could not take it up."""


class Journal:
    """What the run must never forget; `path` None keeps it in memory only (ranks above 0)."""

    def __init__(self, path: Path | None, run: RunId) -> None:
        self.results: dict[str, CommandResult] = {}
        self._asked: dict[str, str] = {}  # command with a result -> what was asked of whom
        self.begun: dict[str, tuple[int, bool]] = {}  # command -> step, whether a restart keeps it
        self.ledger = Ledger()
        self.abandonments: list[Abandonment] = []
        self.scalings: list[Scaling] = []  # oldest first
        self.kept: set[str] = set()  # commands whose learning rate this attempt took up again
        self.earlier: tuple[CommandResult, ...] = ()  # the newest, found in the file
        self._path = path
        if path is not None:
            self._open(path, run)

    def begin(
        self,
        command: str,
        step: int,
        skip: BatchRange | None = None,
        abandoned: Iterable[Abandonment] = (),
        scaling: Scaling | None = None,
        order: Order | None = None,
    ) -> None:
        """Write ahead what `command` is about to change; raise OSError where that fails.

        `order` is for people here: what was asked, and of which attempt.
        """
        self._append(
            {
                "entry": "begun",
                **_for_people(order),
                "command": command,
                "step": step,
                "skip": [skip.first, skip.end] if skip else None,
                "abandoned": [[a.segment.attempt, a.segment.number, a.after] for a in abandoned],
                "scaling": scaling.plain() if scaling is not None else None,
            }
        )

    def end(self, result: CommandResult, order: Order | None = None) -> None:
        """Write what became of a command; from then on this is the answer."""
        self._append({"entry": "result", **_for_people(order), "result": to_json(result)})

    def answers(self, order: Order) -> bool:
        """Whether the result of that name is of this order, as far as the entry says.

        A server whose database was restored to before a command gives its number to another one.
        """
        asked = self._asked.get(order.command)
        return asked is None or asked == _asked_of(_for_people(order))

    def shared(self) -> str:
        """What the other ranks need, as text."""
        return json.dumps(
            {
                "skips": [
                    [r.first, r.end, self.ledger.commands.get(r)] for r in self.ledger.ranges
                ],
                "abandoned": [
                    [a.segment.attempt, a.segment.number, a.after] for a in self.abandonments
                ],
                "scalings": [[s.command, s.plain()] for s in self.scalings],
            }
        )

    def adopt(self, shared: str) -> None:
        """Take over what rank 0 read."""
        plain = json.loads(shared)
        self._apply_effects(plain["skips"], plain["abandoned"])
        self.scalings += [Scaling.read(command, scaling) for command, scaling in plain["scalings"]]

    def _open(self, path: Path, run: RunId) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._read(path, run)
        else:
            self._append({"entry": "run", "run": str(run)})
            _sync_folder(path.parent)

    def _read(self, path: Path, run: RunId) -> None:
        text = path.read_bytes()
        for line in text.split(b"\n"):
            if entry := read_entry(line):
                self._apply(entry, run)
        self.earlier = tuple(self.results.values())[-REPEATED:]
        if text and not text.endswith(b"\n"):
            with path.open("ab") as file:
                file.write(b"\n")

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is not None:
            line = json.dumps(entry, allow_nan=False).encode() + b"\n"
            line_files.append_line(self._path, line)
        try:
            self._apply(entry, None)
        except Exception as error:
            raise WrittenOnly(
                f"the journal holds it and this process does not: {error!r}"
            ) from error

    def _apply(self, entry: dict[str, Any], run: RunId | None) -> None:
        if entry["entry"] == "run" and run is not None and entry["run"] != str(run):
            raise AttachError(
                "directory",
                f"it holds the journal of run {entry['run']!r}, not of {str(run)!r}",
                "Give each run a directory of its own",
            )
        if entry["entry"] == "begun":
            lasting = bool(entry["skip"] or entry["abandoned"])
            self.begun[entry["command"]] = (entry["step"], lasting)
            skips = [[*entry["skip"], entry["command"]]] if entry["skip"] else []
            self._apply_effects(skips, entry["abandoned"])
            if entry.get("scaling"):
                self.scalings.append(Scaling.read(entry["command"], entry["scaling"]))
        if entry["entry"] == "result":
            result = from_json(CommandResult, entry["result"])
            self.results[result.command] = result
            self.begun.pop(result.command, None)
            if "action" in entry:
                self._asked[result.command] = _asked_of(entry)

    def _apply_effects(self, skips: list[list[Any]], abandoned: list[list[Any]]) -> None:
        for first, end, command in skips:
            self.ledger.add(BatchRange(first, end), command)
        for attempt, number, after in abandoned:
            self.abandonments.append(Abandonment(SegmentId(attempt, number), after))

    def unfinished(self) -> list[CommandResult]:
        """Results for commands that an earlier attempt began and did not live to report.

        What they skip and abandon was written ahead and holds, so the restart, which begins from
        before the abandoned stretch, completes them, as `resume()` completes a lowered learning
        rate; anything else died with the attempt.
        """
        return [self._interrupted(command, *begun) for command, begun in self.begun.items()]

    def _interrupted(self, command: str, step: int, lasting: bool) -> CommandResult:
        lowers = any(s.command == command and s.asked for s in self.scalings)
        kept = command in self.kept
        if lowers and kept:
            said = "completed by a restart: it took the lower learning rate up again"
        elif lasting and not lowers:
            said = "completed by a restart: it began from before, without what is left out"
        elif lasting:
            said = "the restart leaves the batches out, but the learning rate was not lowered"
        else:
            said = "the attempt ended before it took effect"
        done = kept if lowers else lasting
        return CommandResult(
            command, ResultState.APPLIED if done else ResultState.FAILED, said, step
        )

    def scaling_since(self, point: SegmentPoint | None) -> Scaling | None:
        """The newest scale set at or after `point` (None: the beginning) and not abandoned."""
        for scaling in reversed(self.scalings):
            follows = point is None or any(
                p.segment == point.segment and p.step >= point.step for p in scaling.lineage
            )
            if follows and not is_abandoned(scaling.lineage, self.abandonments):
                return scaling
        return None


def _asked_of(entry: dict[str, Any]) -> str:
    return json.dumps([entry["attempt"], entry["action"]], sort_keys=True)


def _for_people(order: Order | None) -> dict[str, Any]:
    """When, and what was asked of whom."""
    asked = {"attempt": order.attempt, "action": to_json(order.action)} if order else {}
    return {"at": time.time(), **asked}


def read_entry(line: bytes) -> dict[str, Any] | None:
    """A line of the file; None for one that was cut short."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "entry" in entry else None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
