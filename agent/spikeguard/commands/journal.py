"""The record outside the checkpoints: commands, skips, abandoned stretches, lowered rates.

Append-only JSON lines, each durable (fsync) before the act it speaks of counts as done. One line
says all that a command changes, so a crash leaves a command done or not, never in between.
Rank 0 writes; every attempt reads it before it trains; a torn line is as if never written,
and an entry that could not be made durable is taken back. What the journal says survives any
checkpoint: data once skipped stays skipped.
"""

from __future__ import annotations

import errno
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from spikeguard.errors import AttachError
from spikeguard.optim.lr_scale import LrScale
from spikeguard.state.folders import sync_folder
from spikeguard.state.lineage import Abandonment, Lineage, Skips, is_abandoned
from spikeguard_protocol import (
    BatchRange,
    CommandResult,
    Order,
    ResultState,
    RunId,
    SegmentPoint,
    Verb,
    from_json,
    to_json,
    verb_of,
)
from spikeguard_protocol.encoding import seal, unseal
from spikeguard_protocol.orders import check_mitigation

UNDONE = "undone.jsonl"  # beside the journal: what people have taken back
REPEATED = 16  # newest results of earlier attempts that an attempt tells again
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Scaling:
    """The learning rate's scale from the end of `lineage` on, once `command` was carried out."""

    command: str
    lineage: Lineage
    scale: LrScale | None
    asked: bool  # the command lowers it; otherwise it came back with a rollback's target


@dataclass(frozen=True, slots=True)
class Applying:
    """The mitigation `name` in the `steps` steps after step `start`, where `lineage` ends."""

    command: str
    lineage: Lineage
    name: str
    start: int
    steps: int

    def __post_init__(self) -> None:
        check_mitigation("name", self.name)

    @property
    def end(self) -> int:
        """The last step that is made with it."""
        return self.start + self.steps


@dataclass(frozen=True, slots=True)
class Begun:
    """What `command` changes, written ahead at `step`."""

    command: str
    step: int
    skip: BatchRange | None = None
    abandoned: tuple[Abandonment, ...] = ()
    scaling: Scaling | None = None
    applying: Applying | None = None

    def __post_init__(self) -> None:
        CommandResult(self.command, ResultState.FAILED, "", self.step)  # as a restart tells it


class Journal:
    """What the run must never forget; `path` None keeps it in memory only (ranks above 0)."""

    def __init__(self, path: Path | None, run: RunId) -> None:
        self.run = run
        self.undone: dict[str, Undo] = {}
        self.ordered: dict[str, Begun] = {}  # command -> what of it holds
        self.plain: dict[str, dict[str, Any]] = {}  # command -> its entry as the file has it
        self.carried_out: list[tuple[Verb, float]] = []  # and when, monotonic seconds
        self._unwanted_scales: set[LrScale] = set()  # as checkpoints may still hold them
        self.results: dict[str, CommandResult] = {}
        self._asked: dict[str, Any] = {}  # command with a result -> what was asked of whom
        self._unended: set[str] = set()  # commands without a result
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

    def begin(self, begun: Begun, order: Order | None = None) -> None:
        """Write ahead what a command is about to change; raise OSError where that fails.

        `order` is for people here: what was asked, and of which attempt.
        """
        self._append({"entry": "begun", **_for_people(order), "begun": to_json(begun)})
        if order is not None:
            self.carried_out.append((verb_of(order.action), time.monotonic()))
        self._take(begun)

    def end(self, result: CommandResult, order: Order | None = None) -> None:
        """Write what became of a command; from then on this is the answer."""
        people = _for_people(order)
        self._append({"entry": "result", **people, "result": to_json(result)})
        self._conclude(result, people)

    def answers(self, order: Order) -> bool:
        """Whether the result of that name is of this order, as far as the entry says.

        A server whose database was restored to before a command gives its number to another one.
        """
        asked = self._asked.get(order.command)
        return asked in (None, [order.attempt, to_json(order.action)])

    def shared(self) -> dict[str, Any]:
        """What the other ranks need."""
        return {
            "skips": self.skips,
            "abandonments": self.abandonments,
            "applyings": [each for each in self.applyings if self.wants(each)],
            "scalings": self.scalings,
            "_unwanted_scales": self._unwanted_scales,
        }

    def adopt(self, shared: dict[str, Any]) -> None:
        """Take over what rank 0 read."""
        vars(self).update(shared)

    def _open(self, path: Path, run: RunId) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self.read(path, run)
            self.earlier = tuple(self.results.values())[-REPEATED:]
        if not self._names_run:
            self._append({"entry": "run", "run": str(run)})
            sync_folder(path.parent)

    def read(self, path: Path, run: RunId | None) -> None:
        """Take up what stands in `path`, of that run where one is named; writes nothing."""
        lines = read_lines(path)
        entries = [(n, entry) for n, entry in lines.entries if "entry" in entry]
        self._names_run = any(entry["entry"] == "run" for _, entry in entries)
        self._note_damage(path, lines)
        self.cut_short = lines.cut_short
        self.undone, undone_lines = read_undone(path.with_name(UNDONE))
        self._note_damage(path.with_name(UNDONE), undone_lines)
        for number, entry in entries:
            try:
                if number in lines.changed:
                    raise ValueError("it was changed since it was written")
                self._read_entry(entry, run)
            except AttachError:
                raise
            except Exception as error:  # whatever the line holds, other ranks wait for an answer
                raise AttachError(
                    "directory",
                    f"line {number} of {path} is damaged ({type(error).__name__}: {error})"[:500],
                    "Restore the file from a copy, or remove that line: the run then goes on as if "
                    "what it says had never been",
                ) from error

    def _note_damage(self, path: Path, lines: Lines) -> None:
        if lines.damage is not None:
            said = f"{path} {lines.damage}: what stood there does not hold"
            self.damage.append(f"{said}. Restore the file from a copy")

    def _append(self, entry: dict[str, Any]) -> None:
        if self._path is not None:
            append_line(self._path, entry)

    def accepted(self, scale: LrScale | None) -> LrScale | None:
        """A scale out of a checkpoint or the file; None where its order was undone."""
        return None if scale in self._unwanted_scales else scale

    def _read_entry(self, entry: dict[str, Any], run: RunId | None) -> None:
        if entry["entry"] == "run" and run is not None and entry["run"] != str(run):
            raise AttachError(
                "directory",
                f"this folder holds the journal of run {entry['run']!r}, not of {str(run)!r}",
                "Give each run checkpoints, and a directory, of its own",
            )
        if entry["entry"] == "begun":
            begun = from_json(Begun, entry["begun"])
            self.plain[begun.command] = entry
            if "verb" in entry:  # one that was dated by a clock that was ahead counts from now on
                ago = max(0.0, time.time() - entry["at"])
                self.carried_out.append((Verb(entry["verb"]), time.monotonic() - ago))
            if begun.command in self.undone:
                if begun.scaling is not None and begun.scaling.asked and begun.scaling.scale:
                    self._unwanted_scales.add(begun.scaling.scale)
                begun = Begun(begun.command, begun.step)
            self._take(begun)
        if entry["entry"] == "result":
            self._conclude(from_json(CommandResult, entry["result"]), entry)

    def _take(self, begun: Begun) -> None:
        command = begun.command
        self.ordered[command] = begun
        self._unended.add(command)
        if begun.skip is not None:
            self.skips.add(begun.skip, command)
        self.abandonments += begun.abandoned
        if begun.applying is not None:
            self.applyings.append(begun.applying)
        if begun.scaling is not None:
            self.scalings.append(begun.scaling)
            if begun.scaling.asked and begun.scaling.scale is not None:  # anew since it was undone
                self._unwanted_scales.discard(begun.scaling.scale)

    def _conclude(self, result: CommandResult, people: dict[str, Any]) -> None:
        self.results[result.command] = result
        self._unended.discard(result.command)
        if "action" in people:
            self._asked[result.command] = [people["attempt"], people["action"]]

    def unfinished(self) -> list[CommandResult]:
        """Results for commands that an earlier attempt began and did not live to report.

        What they skip and abandon was written ahead and holds, so the restart, which begins from
        before the abandoned stretch, completes them, as `resume()` completes a lowered learning
        rate; anything else died with the attempt.
        """
        begun = [each for each in self.ordered.values() if each.command in self._unended]
        return [self._interrupted(each) for each in begun]

    def _interrupted(self, begun: Begun) -> CommandResult:
        command = begun.command
        lasting = begun.skip is not None or bool(begun.abandoned)
        lowers = begun.scaling is not None and begun.scaling.asked
        done = command in self.kept if lowers else lasting or begun.applying is not None
        said = "completed by a restart" if done else "the attempt ended before it took effect"
        if command in self.undone:
            said = "not repeated by a restart: it was undone"
        elif lasting and not done:
            said = "the restart leaves the batches out, but the learning rate was not lowered"
        state = ResultState.APPLIED if done else ResultState.FAILED
        return CommandResult(command, state, said, begun.step)

    def wants(self, applying: Applying) -> bool:
        """Whether it holds: it was neither given up by a rollback nor found not to work."""
        result = self.results.get(applying.command)
        failed = result is not None and result.state is ResultState.FAILED
        return not failed and not is_abandoned(applying.lineage, self.abandonments)

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
    append_line(path, {"entry": "undone", **asdict(undo)})
    sync_folder(path.parent)


def _for_people(order: Order | None) -> dict[str, Any]:
    """When, and what was asked of whom."""
    if order is None:
        return {"at": time.time()}
    action, verb = to_json(order.action), verb_of(order.action)
    return {"at": time.time(), "attempt": order.attempt, "verb": verb, "action": action}


# ---- lines of a file -----------------------------------------------------------------------------
# Each ends with its number and a checksum: whoever reads can tell a line that a kill cut short from
# one that was changed or is gone. A line that was cut short does not swallow the next. Lines
# without number and checksum, as a person writes them, are read as they stand.


@dataclass(slots=True)
class Lines:
    """What a file holds."""

    entries: list[tuple[int, dict[str, Any]]] = field(default_factory=list)  # by line number
    cut_short: list[int] = field(default_factory=list)  # lines that are no JSON object
    changed: list[int] = field(default_factory=list)  # lines whose checksum is another one
    missing: int = 0  # entries that were durable once and are not there

    @property
    def damage(self) -> str | None:
        """What is wrong with the file, as the rest of a sentence about it; None: nothing."""
        parts = [f"lacks {self.missing} entries that it once held"] if self.missing else []
        if self.changed:
            parts.append(f"has lines that were changed: {', '.join(map(str, self.changed[:8]))}")
        return " and ".join(parts) or None


def append_line(path: Path, entry: dict[str, Any]) -> None:
    """Durable and whole, or as if never tried; raise OSError."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "a+b", buffering=0) as file:
        length = file.seek(0, os.SEEK_END)
        tail = os.pread(handle, _TAIL_BYTES, max(0, length - _TAIL_BYTES))
        sealed = (unseal(line, path.name) for line in reversed(tail.split(b"\n")))
        last = next((each[0] for each in sealed if each is not None and each[1]), 0)
        data = sealed_line(entry, last + 1, path.name)
        if tail and not tail.endswith(b"\n"):
            data = b"\n" + data  # what stands there was cut short: it must not swallow this
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        except BaseException:
            with suppress(OSError):
                file.truncate(length)
                os.fsync(handle)
            raise


def sealed_line(entry: dict[str, Any], number: int, name: str) -> bytes:
    """`entry` as line `number` of the file called `name`, its end included."""
    return seal(json.dumps(entry, allow_nan=False).encode(), number, name)


def read_lines(path: Path) -> Lines:
    """All of the file; raise OSError where it cannot be read, also where there is none."""
    found, expected = Lines(), 1
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not isinstance(entry, dict):
            found.cut_short.append(number)
            continue
        found.entries.append((number, entry))
        own, sound = unseal(line.strip(), path.name) or (None, not entry.keys() & {"n", "crc"})
        if not sound:
            found.changed.append(number)
        if own is not None:
            found.missing += max(0, own - expected)
            expected = own + 1
    return found
