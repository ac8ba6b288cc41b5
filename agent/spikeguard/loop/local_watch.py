"""Tells of a spike in the job's own log where there is no server.

The server's detection and its default policy, on what is written for the server, in a thread of
rank 0. Nothing is carried out. The loop's items go through a bounded queue, of which the oldest are
dropped.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from spikeguard.faults import log
from spikeguard.uplink.outbox import Draft
from spikeguard_protocol import (
    AttemptStarted,
    Record,
    Samples,
    SegmentId,
    TargetDeleted,
    TargetSaved,
    Verb,
    abilities_from_settings,
)
from spikeguard_protocol.abilities import mitigations_from_settings
from spikeguard_protocol.phrases import action_phrase, cause_phrase, paragraphs, sure_phrase

if TYPE_CHECKING:  # numpy comes with it: in the thread, so that attach() does not wait for it
    from spikeguard_core.events import Event, Judgement, Opened
    from spikeguard_core.policy.unattended import Unanswered

WAITING = 5_000  # records between the loop and the thread
EVERY_S = 1.0  # between two looks: many rows at once cost a fraction of each alone
CLOSE_S = 1.0  # how long the end of an attempt waits for the last lines


class LocalWatch:
    """Detection beside the loop."""

    def __init__(self, segment: SegmentId, targets: Iterable[TargetSaved]) -> None:
        """`targets`: checkpoints of earlier attempts that the run may go back to."""
        self._segment = segment
        self._targets = {target.name: target for target in targets}
        self._waiting: deque[Record | Draft] = deque(maxlen=WAITING)
        self._closing = threading.Event()
        self._kind = ""  # of the open incident, as it was last told
        self._thread: threading.Thread | None = None
        self._can = find_spec("numpy") is not None
        if not self._can:
            log.warning("spikes are not looked for without a server: that needs numpy")

    def put(self, record: Record | Draft) -> None:
        """Called from the loop: never waits. A draft is made a record by the thread."""
        if not self._can:
            return
        self._waiting.append(record)
        if self._thread is None:  # at the first step: attaching brings no package
            self._thread = threading.Thread(target=self._run, name="spikeguard-watch", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Tell what waits, for at most `CLOSE_S`."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # nothing of it may reach the job
            log.warning("spikes are no longer looked for: %s: %s", type(error).__name__, error)

    def _watch(self) -> None:
        from spikeguard_core.detection.sample import Sample
        from spikeguard_core.policy.settings import Policy
        from spikeguard_core.policy.unattended import UnattendedRun

        run = UnattendedRun(Policy(), self._segment, lambda *_: self._targets.values())
        ended = False
        while not ended:
            ended = self._closing.wait(EVERY_S)
            rows: list[Sample] = []
            while self._waiting:
                record = _made(self._waiting.popleft())
                if isinstance(record, AttemptStarted):
                    run.capabilities = frozenset(map(Verb, record.capabilities))
                    run.abilities = abilities_from_settings(record.settings)
                    run.mitigations = mitigations_from_settings(record.settings)
                elif isinstance(record, TargetSaved):
                    self._targets[record.name] = record
                elif isinstance(record, TargetDeleted):
                    self._targets.pop(record.name, None)
                elif isinstance(record, Samples):
                    columns = record.signals.items()
                    values = {name: one for name, (one, *_) in columns if one is not None}
                    rows.append(Sample(record.steps[0], values, record.positions[0]))
            for events, would in run.watch(rows):
                self._say(run.opened, events, would, run.reason)

    def _say(
        self, opened: int, events: Sequence[Event], would: Unanswered | None, reason: str
    ) -> None:
        """Log what is news. `opened`: incidents so far, with those of `events`."""
        from spikeguard_core.events import Closed, Opened, Revised

        number = opened - sum(isinstance(event, Opened) for event in events)
        lines: list[str] = []
        for event in events:
            number += isinstance(event, Opened)
            name = f"spike #{number} of this attempt"
            if isinstance(event, Opened):
                self._kind = event.judgement.kind
                lines += _opened(name, event)
                lines += [] if would else [f"  would propose nothing. {_one_line(reason)}".rstrip()]
            elif isinstance(event, Revised) and event.judgement.kind != self._kind:
                self._kind = event.judgement.kind
                lines.append(f"{name}, by step {event.step}: {_judged(event.judgement)}")
            elif isinstance(event, Closed):
                lines.append(f"{name} ended at step {event.step}: {_words(event.outcome)}")
        if would is not None:
            said, step = _one_line(would.proposal.reason), would.situation.step
            phrase = action_phrase(would.action)
            lines.append(f"  at step {step} it would propose: {phrase}. {said}")
        for line in lines:
            log.warning("%s", line)


def _made(item: Record | Draft) -> Any:
    """The record; None where its values make none, which the outbox counts as a fault."""
    try:
        return item() if callable(item) else item
    except Exception:
        return None


def _opened(name: str, event: Opened) -> list[str]:
    seen = f"since step {event.onset_step}, seen at {event.step} in {event.signal}"
    lines = [f"{name}, {seen}: {_judged(event.judgement)}"]
    if event.causes:
        cause = event.causes[0]
        because = f": {'; '.join(cause.reasons)}" if cause.reasons else ""
        sure = sure_phrase(cause.confidence)
        lines.append(f"  cause: {cause_phrase(cause.cause)} ({sure}){because}")
    return lines


def _judged(judgement: Judgement) -> str:
    sure = sure_phrase(judgement.confidence)
    return f"{_words(judgement.kind)} ({sure}), {judgement.reason}"


def _one_line(reason: str) -> str:
    return " ".join(paragraphs(reason))


def _words(value: str) -> str:
    return value.replace("_", " ")
