"""An incident's title and summary, in the words that every view shows."""

from __future__ import annotations

from spikeguard_core.lifecycle.incident import Incident, had_non_finite, rose
from spikeguard_core.policy.finding import alone_moved, first_move_of, loss_not_finite
from spikeguard_protocol import Kind, Signal
from spikeguard_protocol.phrases import times_phrase
from spikeguard_server.report.wording import capital, number, word

_FLAT = "the loss did not rise"


def heading_of(incident: Incident) -> str:
    """`lingering spike`, `non-finite gradient`, `router entropy moved`: the gravest first."""
    if incident.apart:
        return "ranks apart"
    if incident.stuck:
        return "updates dropped"
    if incident.zero:
        return "loss of exactly 0"
    if loss_not_finite(incident):
        return "non-finite loss"
    if had_non_finite(incident) and not rose(incident):  # beside a rise it is any spike's
        return "non-finite gradient"
    if alone_moved(incident):
        return f"{word(incident.signal)} moved"
    kind = word(incident.kind.value)
    return kind if incident.kind is Kind.OUTLIER_BATCH else f"{kind} spike"


def summary_of(incident: Incident) -> str:
    """What happened; that it was there again comes first."""
    first, again = beginning_of(incident), return_of(incident)
    return f"{again}; {first[:1].lower()}{first[1:]}" if again else first


def return_of(incident: Incident) -> str:
    """That it was there again after a command or a restart, and where; empty where it was not."""
    if not incident.recurrences:
        return ""
    if not incident.came_back:
        return "It stayed after a command or a restart"
    at, times = f"at step {incident.newest_onset_step:,}", incident.recurrences
    if times == 1:
        return f"It came back {at}"
    return f"It came back {times_phrase(times)}, the last time {at}"


def peak_of(incident: Incident) -> str:
    """Where the loss was farthest off; of one that was there again, in all of it."""
    what = "peak of the whole incident" if incident.recurrences else "peak"
    return f"{what} at step {incident.peak_step:,}"


def beginning_of(incident: Incident) -> str:
    """Of the loss only what it did: where a gradient alone was not finite, it did not rise."""
    rise = _rise(incident) if rose(incident) else ""
    if incident.apart:
        parted = "Ranks of the job no longer held the same weights"
        return f"{parted}; {rise}" if rise else parted
    if incident.stuck:
        flat = "the loss was not finite" if loss_not_finite(incident) else _FLAT
        return f"Update after update was dropped; {rise or flat}"
    if rise:
        return capital(rise)
    if incident.zero:
        return "The loss was exactly 0"
    if loss_not_finite(incident):
        return "The loss was not finite"
    if had_non_finite(incident):
        return f"A gradient was not finite; {_FLAT}"
    first = first_move_of(incident).signal
    if first == Signal.LOSS:
        return "The loss left its baseline"
    moved = f"{capital(word(first))} left its baseline"
    return moved if incident.peak_loss is None else f"{moved}; {_FLAT}"


def _rise(incident: Incident) -> str:
    known, peak = incident.pre_loss, incident.peak_loss
    before = "" if known is None else f" from {number(known)}"
    after = ", and was not finite" if loss_not_finite(incident) else ""
    moved = "fell" if known is not None and peak is not None and peak < known else "rose"
    most = " at most" if incident.recurrences and moved == "rose" else ""
    return f"the loss {moved}{before} to {number(peak)}{most}{after}"
