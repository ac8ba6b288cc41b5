"""The finding for an incident: its symptom, its cause, and its row in the table of remedies. Every
view asks here, so that no two of them name another signal."""

from __future__ import annotations

import math
from dataclasses import dataclass

from spikeguard_core.lifecycle.incident import (
    LOOKBACK_STEPS,
    Incident,
    cause_step,
    had_non_finite,
    rose,
)
from spikeguard_core.policy.remedies import GoBack, Remedy, remedy_of
from spikeguard_core.suspicion import Mark, Suspicion, known_in
from spikeguard_protocol import BatchRange, Cause, Signal
from spikeguard_protocol.phrases import CAUSE_WORDS, batches_phrase, sure_phrase

LIKELY = 0.6  # confidence from which a cause tells where the incident began
RETREAT = 0.1  # of confidence below the one to act at, until what waits for a person is taken back


@dataclass(frozen=True, slots=True)
class Finding:
    """An incident's diagnosis with its remedy."""

    incident: Incident
    remedy: Remedy

    @property
    def suspicion(self) -> Suspicion | None:
        """The likeliest cause; None where nothing was ranked."""
        return next(iter(self.incident.causes), None)

    @property
    def known(self) -> bool:
        return self.remedy.diagnosis is not Cause.UNKNOWN

    @property
    def mark(self) -> Mark | None:
        """Where the diagnosed cause shows."""
        return self.suspicion.mark if self.known and self.suspicion is not None else None

    def share(self, *diagnoses: Cause) -> float:
        """How likely one of `diagnoses` is; 0 where nothing was ranked."""
        return sum((one.confidence for one in self.incident.causes if one.cause in diagnoses), 0.0)

    @property
    def struck_step(self) -> int:
        """The step at which the cause struck; of a spike that came back, that of the return."""
        first, mark = cause_step(self.incident), self.mark
        if mark is None or self.incident.recurred_step is not None:
            return first
        return min(first, max(mark.first_step, first - LOOKBACK_STEPS))

    @property
    def sentence(self) -> str:
        """The cause, how sure it is, and what speaks most for it."""
        if self.remedy.diagnosis is Cause.REPLICAS_APART:
            return ""  # the incident's own reason says it
        likely, known = self.suspicion, known_in(self.incident.causes)
        if likely is None or likely.cause is Cause.UNKNOWN:
            return f"The cause is not known: {known or 'nothing that was measured tells it'}."
        title, sure = CAUSE_WORDS[likely.cause], sure_phrase(likely.confidence)
        if self.known:
            because = next(iter(likely.reasons), "nothing else explains it as well")
            return f"Likely cause ({sure}): {title}: {because}."
        known = f" Known is: {known}." if known else ""
        return f"The cause is not known; nearest is {title} ({sure}).{known}"

    @property
    def advice(self) -> str:
        """The sentence, and what is to be done where no command does it."""
        by_hand = self.remedy.back is GoBack.NO
        return f"{self.sentence} {self.remedy.because}".rstrip() if by_hand else self.sentence


def diagnose(incident: Incident, offered: str | None = None) -> Finding:
    """The likeliest cause where it is sure enough to act on, with its remedy.

    `offered`: the diagnosis of the proposal that waits for a person. It holds while it is the
    likeliest, down to `RETREAT` below what its row asks for.
    """
    likely = next(iter(incident.causes), None)
    diagnosis = Cause.UNKNOWN if likely is None else likely.cause
    sure = 0.0 if likely is None else likely.confidence
    if incident.apart:
        diagnosis, sure = Cause.REPLICAS_APART, 1.0
    row = remedy_of(diagnosis, incident.kind)
    if sure < (row.sure - RETREAT if diagnosis == offered else row.sure):
        row = remedy_of(Cause.UNKNOWN, incident.kind)
    return Finding(incident, row)


def checks_of(incident: Incident) -> tuple[str, ...]:
    """What to look at before approving."""
    return _filled(diagnose(incident).remedy.checks, incident)


def follow_ups_of(incident: Incident, skipped: tuple[BatchRange, ...] = ()) -> tuple[str, ...]:
    """What to do the next morning; `skipped` by the commands of the incident."""
    return _filled(diagnose(incident).remedy.follow_ups, incident, skipped)


def _filled(
    texts: tuple[str, ...], incident: Incident, skipped: tuple[BatchRange, ...] = ()
) -> tuple[str, ...]:
    finding, layer = diagnose(incident), incident.first_layer
    mark = finding.mark
    first = incident.onset_step if mark is None else mark.first_step
    rank = None if mark is None else mark.rank
    raised = ""
    if mark is not None and mark.ratio is not None:
        until = " on" if mark.last_step is None else f" to {mark.last_step:,}"
        raised = f" (raised from step {first:,}{until})"
    words = {
        "title": finding.remedy.title,
        "first_step": f"{first:,}",
        "where_raised": raised,
        "rank": "the rank that holds these weights" if rank is None else f"rank {rank}",
        "layer": "the layer that moved first" if layer is None else layer.layer,
        "positions": _positions(incident, mark, skipped),
    }
    return tuple(text.format_map(words) for text in texts)


def _positions(incident: Incident, mark: Mark | None, skipped: tuple[BatchRange, ...]) -> str:
    if skipped:
        return " and ".join(map(batches_phrase, skipped))
    batches = incident.onset_batches
    if batches is None:
        return "the onset"
    if mark is None or mark.last_step is None:
        return f"{batches_phrase(batches)} and the next"
    more = max(0, mark.last_step - incident.onset_step) * len(batches)
    return batches_phrase(BatchRange(batches.first, batches.end + more))


@dataclass(frozen=True, slots=True)
class FirstMove:
    """The first signal to move, and the step at which it did."""

    signal: str
    step: int


_SHOWN_BY = {
    Cause.LR_TOO_HIGH: Signal.LR,
    Cause.WEIGHT_CORRUPTION: Signal.PARAM_NORM,
    Cause.STALE_SECOND_MOMENT: Signal.ADAM_V_NORM,
}  # the signal in which a cause that has a mark shows


def first_move_of(incident: Incident) -> FirstMove:
    """The first to move: a signal as such, its norm of one layer, or where the likely cause shows.
    At one step the loss comes first: a step has it before its gradient. What moved long before the
    onset, or before the likely cause, is another story."""
    moves = dict(incident.first_moves or {incident.signal: incident.onset_step})
    if (layer := incident.first_layer) is not None:
        moves[layer.signal] = min(layer.step, moves.get(layer.signal, layer.step))
    since = min(incident.onset_step - LOOKBACK_STEPS, incident.apart_since or incident.onset_step)
    likely = next((one for one in incident.causes[:1] if one.confidence >= LIKELY), None)
    if likely is not None and likely.mark is not None and likely.cause in _SHOWN_BY:
        struck = likely.mark.first_step
        since = min(struck, incident.onset_step)
        if likely.cause is Cause.LR_TOO_HIGH or likely.mark.last_step == struck:  # else between two
            moves[_SHOWN_BY[likely.cause]] = struck
    near = [name for name, step in moves.items() if step >= since] or [*moves]
    first = min(near, key=lambda name: (moves[name], name != Signal.LOSS))
    return FirstMove(first, moves[first])


def alone_moved(incident: Incident) -> bool:
    """Whether a signal beside the loss opened it, by its size, and the loss did not rise."""
    if incident.signal == Signal.LOSS or incident.apart or incident.stuck:
        return False
    return not rose(incident) and not had_non_finite(incident)


def loss_not_finite(incident: Incident) -> bool:
    """Whether the loss that moved is, or was, NaN or infinite."""
    if incident.zero:
        return False
    if incident.peak_loss is None and incident.signal == Signal.LOSS:
        return True
    seen = (incident.worst_z.get(Signal.LOSS), incident.peak_loss, incident.excess)
    return not all(math.isfinite(value) for value in seen if value is not None)
