"""The doctor of one attempt, on rank 0. The loop's thread looks once in 16 steps and reads no value
of a device; samples are seen where they are made, in the outbox's thread.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from torch import Tensor

from spikeguard.doctor.job import rounding, setup_of
from spikeguard.doctor.rules import (
    EARLY,
    LANGUAGE,
    NORMALISED,
    Family,
    Group,
    Schedule,
    Setup,
    findings_in,
    unlimited,
)
from spikeguard.faults import LINES, Faults, log
from spikeguard.optim.update_skipper import scalers_of
from spikeguard.ranks.layout import Job
from spikeguard.ranks.rank_group import World
from spikeguard.settings import Settings
from spikeguard_protocol import Record, Samples
from spikeguard_protocol.findings import Finding, Level, by_weight

SEEN: Final = ("grad_norm", "grad_norm_at_step")
_LEFT_OUT: Final = ("update_dropped", "step_skipped")
_KEPT: Final = ("initial_lr", "betas", "eps")  # of a group, which a checkpoint replaces


class Seen(NamedTuple):
    """A draft whose record the doctor sees too, where it is made."""

    draft: Any  # called without arguments, it makes the record
    see: Callable[[Record], None]

    def __call__(self) -> Record:
        record: Record = self.draft()
        self.see(record)
        return record


class Doctor:
    """Finds each thing once; what was found stands."""

    def __init__(
        self,
        job: Job,
        given: Sequence[Any],
        settings: Settings,
        tokens_per_step: int | None,
        world: World,
        faults: Faults,
    ) -> None:
        """`given`: the entries of `state=`."""
        self.findings: list[Finding] = []  # that the log has
        self._faults, self._silenced = faults, set(settings.silenced_findings)
        self._found: deque[Finding] = deque()  # that it has not; from two threads
        self._columns: dict[str, list[float]] = defaultdict(list)
        self._steps = 0  # seen
        self._fresh = self._clips = self._half = False
        self._setup = Setup()
        self._optimizers, self._given, self._schedule = job.optimizers, given, Schedule()
        self._leads = leads = world.leads
        self.watches = leads  # whether samples are to be shown
        if leads:
            with faults.shield("doctor"):
                self._configured = [_kept(group) for group in self._groups()]
                self._setup = setup_of(job, given, tokens_per_step)
                self.find(findings_in(self._setup))
                self.find(rounding(job))

    def find(self, findings: Iterable[Finding]) -> None:
        """Note what nobody was told of yet."""
        known = self._silenced | {each.name for each in (*self.findings, *tuple(self._found))}
        for finding in findings:
            if finding.name not in known:
                known.add(finding.name)
                self._found.append(finding)

    def tell(self) -> bool:
        """Put what was found into the log, at once; whether there was something."""
        found = [self._found.popleft() for _ in range(len(self._found))]
        new = by_weight({each.name: each for each in found}.values())
        if not new:
            return False
        self.findings += new
        lines = (f"  {each.rule.level} {each.name}: {each.sentences}" for each in new)
        warns = any(each.rule.level is Level.WARNING for each in new)
        log.log(
            logging.WARNING if warns else logging.INFO,
            "the doctor found (silence one: Settings(silenced_findings=(NAME,))):\n%s",
            "\n".join(lines),
            extra=LINES,
        )
        return True

    # ---- the loop ----------------------------------------------------------------------------

    def begin(self, fresh: bool, restored: bool) -> None:
        """Before the first step. `fresh`: the run begins; `restored`: from a checkpoint."""
        self._fresh = fresh
        if self._leads and restored:
            with self._faults.shield("doctor"):
                self.find(self._overridden())

    def look(self, rates: dict[int, float], *, clips: bool, half: bool) -> bool:
        """Once in 16 steps; whether something is to be told.

        `rates`: by step, of the first group. `clips`: whether the loop has the guard clip. `half`:
        whether it computes in fp16.
        """
        if not self._leads:
            return False
        self._clips, self._half = self._clips or clips, half
        with self._faults.shield("doctor"):
            languages = (self._setup.tokens or 0) >= LANGUAGE
            adam = any(group.family is Family.ADAM for group in self._judged)
            self.find(self._schedule.look(rates, languages and adam and self._fresh))
        return bool(self._found)

    def _overridden(self) -> Iterable[Finding]:
        now = [_kept(group) for group in self._groups()]
        changed = [
            f"group {number}: {name} {old[name]} is configured, {new[name]} was restored"
            for number, (old, new) in enumerate(zip(self._configured, now, strict=True))
            for name in old.keys() & new.keys()
            if old[name] != new[name]
        ]
        return [Finding("restored_rate", "; ".join(sorted(changed)[:2]) + ".")] if changed else []

    # ---- the outbox's thread -----------------------------------------------------------------

    def see(self, record: Record) -> None:
        """What was told of a step."""
        if not isinstance(record, Samples) or not self.watches:
            return
        with self._faults.shield("doctor"):
            values = {name: column[0] for name, column in record.signals.items()}
            if not any(values.get(name) for name in _LEFT_OUT):
                for name in SEEN:
                    if (value := values.get(name)) is not None:
                        self._columns[name].append(value)
            self._steps += 1
            if self._steps >= EARLY:
                self.watches = False
                self._judge(self._columns)

    def _judge(self, columns: Mapping[str, list[float]]) -> None:
        if not self._clips and any(g.family not in NORMALISED for g in self._judged):
            self.find(unlimited(columns["grad_norm_at_step"] or columns["grad_norm"]))
        if self._half and not self._setup.half and not scalers_of(self._given):
            said = "The forward pass computes in fp16, and state= holds no gradient scaler."
            self.find([Finding("fp16_without_scaler", said)])

    @property
    def _judged(self) -> list[Group]:
        return [group for group in self._setup.groups if group.hidden]

    def _groups(self) -> list[dict[str, Any]]:
        """As they are now: loading an optimizer's state makes others."""
        return [group for each in self._optimizers for group in each.param_groups]


def _kept(group: Mapping[str, Any]) -> dict[str, Any]:
    """What of a group is the configuration's; a schedule changes none of it."""
    kept = {name: group[name] for name in _KEPT if name in group}
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in kept.items()
        if not isinstance(value, Tensor)
    }
