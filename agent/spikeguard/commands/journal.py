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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from spikeguard.commands.entries import Applying, Scaling, past_orders, verb_in
from spikeguard.commands.line_files import Lines, append_lines, noted_end, read_lines
from spikeguard.commands.order_limits import (
    apply_refusal,
    return_refusal,
    scale_refusal,
    skip_refusal,
)
from spikeguard.data.skips import Skips
from spikeguard.errors import AttachError
from spikeguard.optim.lr_scale import LrScale
from spikeguard.settings import Settings
from spikeguard.state.lineage import (
    Abandonment,
    is_abandoned,
)
from spikeguard_protocol import (
    BatchRange,
    CommandResult,
    Order,
    ResultState,
    RunId,
    SegmentId,
    SegmentPoint,
    Verb,
    from_json,
    to_json,
)

IF_REMOVED = {  # what a run then does, by the kind of the line
    "run": "it says whose journal this is, and orders nothing",
    "begun": "what it ordered is then forgotten, and batches that it left out are read again",
    "result": "the order that it ended then counts as one that was interrupted",
}
UNDONE = "undone.jsonl"  # beside the journal: what people have taken back
REPEATED = 16  # newest results of earlier attempts that an attempt tells again


class WrittenOnly(Exception):
    """An entry is durable, so the next start obeys it, but this process could not take it up."""


class Journal:
    """What the run must never forget; `path` None keeps it in memory only (ranks above 0)."""

    def __init__(self, path: Path | None, run: RunId, settings: Settings | None = None) -> None:
        """`settings`: hold the limits that what is read is held against; None: hold it to none."""
        self._settings = settings
        self.run = run
        self.undone: dict[str, Undo] = {}
        self.ordered: dict[str, dict[str, Any]] = {}  # command -> what of its entry is repeated
        self.held_back: dict[str, str] = {}  # what is not repeated, and why
        self.carried_out: list[tuple[Verb, float]] = []  # and when, monotonic seconds
        self._unwanted_scales: set[LrScale] = set()  # as checkpoints may still hold them
        self.results: dict[str, CommandResult] = {}
        self._asked: dict[str, str] = {}  # command with a result -> what was asked of whom
        self.begun: dict[str, tuple[int, bool]] = {}  # command -> step, whether a restart keeps it
        self.skips = Skips()
        self.abandonments: list[Abandonment] = []
        self.scalings: list[Scaling] = []  # oldest first
        self.applyings: list[Applying] = []  # oldest first
        self.kept: set[str] = set()  # commands whose learning rate this attempt took up again
        self.earlier: tuple[CommandResult, ...] = ()  # the newest, found in the file
        self.damage: list[str] = []  # what is wrong with the files, a sentence each
        self.cut_short: list[int] = []  # lines
        self._names_run = False
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
        applying: Applying | None = None,
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
                **({"applying": applying.plain()} if applying is not None else {}),
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
                "skips": [[r.first, r.end, self.skips.commands.get(r)] for r in self.skips.ranges],
                "abandoned": [
                    [a.segment.attempt, a.segment.number, a.after] for a in self.abandonments
                ],
                "applyings": [[a.command, a.plain()] for a in self.applyings if self.wants(a)],
                "scalings": [[s.command, s.plain()] for s in self.scalings],
                "unwanted_scales": [scale.plain() for scale in self._unwanted_scales],
                "lr_limits": [self._settings.lr_factor_least, self._settings.lr_steps_most]
                if self._settings is not None
                else None,
            }
        )

    def adopt(self, shared: str) -> None:
        """Take over what rank 0 read."""
        plain = json.loads(shared)
        self._apply_effects(plain["skips"], plain["abandoned"])
        self.scalings += [Scaling.read(command, scaling) for command, scaling in plain["scalings"]]
        self.applyings += [Applying.read(command, each) for command, each in plain["applyings"]]
        self._unwanted_scales |= {LrScale.read(scale) for scale in plain["unwanted_scales"]}
        if (
            plain["lr_limits"] is not None
        ):  # rank 0's: a rate that one rank alone takes up parts them
            least, most = plain["lr_limits"]
            known = self._settings or Settings()
            self._settings = replace(known, lr_factor_least=least, lr_steps_most=most)

    def _open(self, path: Path, run: RunId) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._read(path, run)
            self.earlier = tuple(self.results.values())[-REPEATED:]
        elif lost := noted_end(path):
            self._note_damage(path, Lines(missing=lost))
        if not self._names_run:
            self._append({"entry": "run", "run": str(run)})
            _sync_folder(path.parent)

    def look(self, path: Path) -> None:
        """Take up what stands in `path` and write nothing."""
        self._read(path, None)

    def _read(self, path: Path, run: RunId | None) -> None:
        lines = read_lines(path)
        entries = [(n, entry) for n, entry in lines.entries if "entry" in entry]
        self._names_run = any(entry["entry"] == "run" for _, entry in entries)
        self._note_damage(path, lines)
        self.cut_short = lines.cut_short
        self.undone, undone_lines = read_undone(path.with_name(UNDONE))
        self._note_damage(path.with_name(UNDONE), undone_lines)
        ended = {_command_of(entry) for _, entry in entries if entry["entry"] == "result"}
        for number, entry in entries:
            try:
                if number in lines.changed:
                    raise ValueError("it was changed since it was written")
                check_entry(entry)
                self._apply(self._allowed_part(entry, ended), run)
            except AttachError:
                raise
            except Exception as error:  # whatever the line holds, other ranks wait for an answer
                raise AttachError(
                    "directory",
                    f"line {number} of {path} is damaged ({type(error).__name__}: {error})"[:500],
                    "Restore the file from a copy, or remove that line: "
                    + IF_REMOVED.get(str(entry["entry"]), "nothing else depends on it"),
                ) from error
        self.carried_out = past_orders([entry for _, entry in entries if entry["entry"] == "begun"])

    def _note_damage(self, path: Path, lines: Lines) -> None:
        if lines.damage is not None:
            said = f"{path} {lines.damage}: what stood there does not hold"
            self.damage.append(f"{said}. Restore the file from a copy")

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is not None:
            append_lines(self._path, [entry])
        try:
            self._apply(entry, None)
        except Exception as error:
            raise WrittenOnly(
                f"the journal holds it and this process does not: {error!r}"
            ) from error

    def _allowed_part(self, entry: dict[str, Any], ended: set[str]) -> dict[str, Any]:
        """An entry of an earlier attempt without what is not repeated.

        An order that never ended is repeated whole or not at all. Of one that was carried out the
        abandoned stretch stays so: the run has trained on from there.
        """
        if entry["entry"] != "begun":
            return entry
        command, scaling = entry["command"], entry.get("scaling")
        asked = Scaling.read(command, scaling) if scaling and scaling["asked"] else None
        nothing: dict[str, Any] = {"skip": None, "abandoned": [], "scaling": None, "applying": None}
        if command in self.undone:
            if asked is not None and asked.scale is not None:
                self._unwanted_scales.add(asked.scale)
            return {**entry, **nothing}
        if self._settings is None:
            return entry
        skip = skip_refusal(self._settings, BatchRange(*entry["skip"]) if entry["skip"] else None)
        rate = self._scale_problem(asked.scale) if asked is not None else None
        back = None
        if command not in ended:
            back = return_refusal(self._settings, _steps_back(entry))
        applied = Applying.read(command, entry["applying"]) if entry.get("applying") else None
        named = apply_refusal(self._settings, applied.name, applied.steps) if applied else None
        reason = skip or rate or back or named
        if reason is None:
            return entry
        self.held_back[command] = reason
        if command not in ended:
            return {**entry, **nothing}
        return {
            **entry,
            "skip": None if skip else entry["skip"],
            "scaling": None if rate else scaling,
            "applying": None if named else entry.get("applying"),
        }

    def accepted(self, scale: LrScale | None) -> LrScale | None:
        """A scale out of a checkpoint or the file; None where it is not taken up again."""
        if scale is None or scale in self._unwanted_scales:
            return None
        problem = self._scale_problem(scale)
        if problem is not None:
            self.held_back.setdefault("a checkpoint", problem)
        return scale if problem is None else None

    def _scale_problem(self, scale: LrScale | None) -> str | None:
        if scale is None or self._settings is None:
            return None
        return scale_refusal(self._settings, scale.factor, scale.steps)

    def _apply(self, entry: dict[str, Any], run: RunId | None) -> None:
        if entry["entry"] == "run" and run is not None and entry["run"] != str(run):
            raise AttachError(
                "directory",
                f"this folder holds the journal of run {entry['run']!r}, not of {str(run)!r}",
                "Give each run checkpoints, and a directory, of its own",
            )
        if entry["entry"] == "begun":
            if (verb := verb_in(entry)) is not None:
                self.carried_out.append((verb, time.monotonic()))
            lasting = bool(entry["skip"] or entry["abandoned"])
            self.begun[entry["command"]] = (entry["step"], lasting)
            self.ordered[entry["command"]] = entry
            skips = [[*entry["skip"], entry["command"]]] if entry["skip"] else []
            self._apply_effects(skips, entry["abandoned"])
            if entry.get("applying"):
                self.applyings.append(Applying.read(entry["command"], entry["applying"]))
            if entry.get("scaling"):
                scaling = Scaling.read(entry["command"], entry["scaling"])
                self.scalings.append(scaling)
                if scaling.asked and scaling.scale is not None:  # ordered anew since it was undone
                    self._unwanted_scales.discard(scaling.scale)
        if entry["entry"] == "result":
            result = from_json(CommandResult, entry["result"])
            self.results[result.command] = result
            self.begun.pop(result.command, None)
            if "action" in entry:
                self._asked[result.command] = _asked_of(entry)

    def _apply_effects(self, skips: list[list[Any]], abandoned: list[list[Any]]) -> None:
        for first, end, command in skips:
            self.skips.add(BatchRange(first, end), command)
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
        if command in self.undone or command in self.held_back:
            why = f"not repeated by a restart: {self.held_back.get(command, 'it was undone')}"
            return CommandResult(command, ResultState.FAILED, why, step)
        if any(each.command == command for each in self.applyings) and not lasting:
            said = "completed by a restart: the mitigation is on at the steps that were ordered"
            return CommandResult(command, ResultState.APPLIED, said, step)
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

    def wants(self, applying: Applying) -> bool:
        """Whether it holds: it was neither given up by a rollback nor found not to work."""
        result = self.results.get(applying.command)
        failed = result is not None and result.state is ResultState.FAILED
        return not failed and not is_abandoned(applying.lineage, self.abandonments)

    def scaling_at_end(self) -> Scaling | None:
        """The newest scale that was not abandoned, wherever the run stands."""
        held = (
            s for s in reversed(self.scalings) if not is_abandoned(s.lineage, self.abandonments)
        )
        return next(held, None)

    def scaling_since(self, point: SegmentPoint | None) -> Scaling | None:
        """The newest scale set at or after `point` (None: the beginning) and not abandoned."""
        for scaling in reversed(self.scalings):
            follows = point is None or any(
                p.segment == point.segment and p.step >= point.step for p in scaling.lineage
            )
            if follows and not is_abandoned(scaling.lineage, self.abandonments):
                return replace(scaling, scale=self.accepted(scaling.scale))
        return None


@dataclass(frozen=True, slots=True)
class Undo:
    """That a person took a command back; it holds from the next start on."""

    command: str
    at: float  # seconds since the epoch
    by: str  # the user's name on that machine

    def plain(self) -> dict[str, Any]:
        """For the file."""
        return {"entry": "undone", "command": self.command, "at": self.at, "by": self.by}


def read_undone(path: Path) -> tuple[dict[str, Undo], Lines]:
    """By command, and the lines that were read; raise OSError where the file cannot be read."""
    try:
        lines = read_lines(path)
    except FileNotFoundError:
        return {}, Lines()
    sound = [entry for number, entry in lines.entries if number not in lines.changed]
    undone = [entry for entry in sound if entry.get("entry") == "undone"]
    found = [Undo(str(e.get("command")), e.get("at", 0.0), str(e.get("by"))) for e in undone]
    return {undo.command: undo for undo in found}, lines


def add_undo(path: Path, undo: Undo) -> None:
    """Durable; raise OSError. A file of its own: the journal may be a running job's."""
    append_lines(path, [undo.plain()])
    _sync_folder(path.parent)


def check_entry(entry: dict[str, Any]) -> None:
    """Raise for an order that was never written so: the loop would meet it steps later.

    What the other kinds of line hold is checked where it is read.
    """
    if entry["entry"] != "begun":
        return
    CommandResult(entry["command"], ResultState.FAILED, "", entry["step"])  # as a restart tells it
    first_and_end = entry["skip"] or []
    afters = [after for _, _, after in entry["abandoned"]]
    if any(type(number) is not int for number in (entry["step"], *first_and_end, *afters)):
        raise ValueError("a step or a position is no whole number")


def _command_of(entry: dict[str, Any]) -> str:
    result = entry.get("result")
    return str(result.get("command")) if isinstance(result, dict) else ""


def _steps_back(entry: dict[str, Any]) -> int | None:
    """What a rollback gives up, as its entry says; None where it is none."""
    left = [after for _, _, after in entry["abandoned"] if after >= 0]
    return entry["step"] - min(left) if left else None


def _asked_of(entry: dict[str, Any]) -> str:
    return json.dumps([entry["attempt"], entry["action"]], sort_keys=True)


def _for_people(order: Order | None) -> dict[str, Any]:
    """When, and what was asked of whom."""
    asked = {"attempt": order.attempt, "action": to_json(order.action)} if order else {}
    return {"at": time.time(), **asked}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
