"""How numbers, times, names, what became of commands, and an incident's title and summary are
written for a reader, in the words that every view shows."""

from __future__ import annotations

import math
from datetime import datetime

from spikeguard_core.diagnosis.change_effect import Effect, size_words
from spikeguard_core.lifecycle.command_life import EXECUTED, TAKEN_BACK
from spikeguard_core.lifecycle.incident import Incident, had_non_finite, rose
from spikeguard_core.policy.finding import alone_moved, first_move_of, loss_not_finite
from spikeguard_protocol import RATES_OF_GROUPS, CommandState, Kind, Outcome, ScaleLr, Signal
from spikeguard_protocol.phrases import duration_phrase, ended_phrase, times_phrase
from spikeguard_protocol.vocabulary import COMMAND_STATE_WORDS, OUTCOME_WORDS
from spikeguard_server.entities import CommandRow

SIGMA = "\N{GREEK SMALL LETTER SIGMA}"  # a robust standard deviation

ENDINGS: dict[Outcome | None, str] = {outcome: OUTCOME_WORDS[outcome] for outcome in Outcome}
ENDINGS[None] = "unsettled"
_FLAT = "the loss did not rise"


def number(value: float | None, digits: int = 4) -> str:
    """A measured value with `digits` significant digits."""
    if value is None:
        return "not measured"
    if not math.isfinite(value):
        sign = "minus " if value < 0 else ""
        return "NaN" if math.isnan(value) else f"{sign}infinite"
    if 10**digits <= abs(value) < 10_000:
        return f"{value:,.0f}"
    if abs(value) >= 10_000:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{digits}g}"


def off_trend(effect: Effect) -> str:
    """`0.22 ± 0.05 nats above the trend`, or that no distance from it can be told; without figures
    where it is surely below: a young run leaves its trend downwards by more than any interval
    says."""
    if effect.loss < -effect.error:
        return "below the trend"
    if effect.least <= 0.0:
        return f"on the trend as far as can be told ({size_words(effect, '+')})"
    return f"{size_words(effect)} above the trend"


def step_of(step: int | None) -> str:
    """`1,200`; empty: not known."""
    return "" if step is None else f"{step:,}"


def plural(value: int, word: str, words: str | None = None) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{value:,} {word if value == 1 else words or word + 's'}"


def large(value: float) -> str:
    """A count that may be huge: `12,300`, `3.2 million`."""
    for limit, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= limit:
            return f"{value / limit:.3g} {word}"
    return f"{value:,.0f}"


def money(amount: float, currency: str) -> str:
    """`12.00 USD`."""
    return f"{amount:,.2f} {currency}"


def price_of(
    steps: int, seconds: float | None, amount: float | None, currency: str, more: str = ""
) -> str:
    """`260 steps (2.2 min, 12.00 USD)`, of what is known; `more` stands before the money."""
    took = "" if seconds is None else duration_phrase(seconds)
    parts = [took, more, "" if amount is None else money(amount, currency)]
    known = ", ".join(filter(None, parts))
    return f"{plural(steps, 'step')} ({known})" if known else plural(steps, "step")


def time_of(at: datetime | None) -> str:
    """A time in UTC to the second."""
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def capital(text: str) -> str:
    """`text` as a sentence begins."""
    return text[:1].upper() + text[1:]


def word(name: str) -> str:
    """A word of the vocabulary as it stands in a sentence."""
    if name in RATES_OF_GROUPS:
        return f"learning rate of group {name.rpartition('_')[2]}"
    return "learning rate" if name == "lr" else name.replace("_", " ")


def decider(command: CommandRow) -> str:
    """Who decided on it; empty where nobody had to."""
    if command.automatic:
        return command.decided_by or f"policy {command.policy_version}"
    return command.decided_by or ("" if command.state in TAKEN_BACK else "nobody")


def decision_of(command: CommandRow) -> str:
    """`ordered by Ada`, `approved by policy 2`, `rejected by Ada`; empty: nobody decided."""
    if command.decided_at is None:
        return ""
    yes = "ordered" if command.proposed_by is not None else "approved"
    return f"{'rejected' if command.state is CommandState.REJECTED else yes} by {decider(command)}"


def how_it_ended(command: CommandRow) -> str:
    """What became of it and why, in sentences; of what was carried out or healed, not why: the
    incident's own outcome says it."""
    why = command.result or command.end_reason
    known = command.state in EXECUTED or command.state is CommandState.WITHDRAWN_HEALED
    return ended_phrase(COMMAND_STATE_WORDS[command.state], None if known else why)


def own_rule_sentence(command: CommandRow) -> str:
    """What the job did by its emergency rule."""
    action, first = command.action, command.applied_step or 0
    assert isinstance(action, ScaleLr)
    return (
        f"The job's emergency rule multiplied the learning rate by {action.factor:g} after step "
        f"{first:,}, for {action.steps:,} steps, up to step {first + action.steps:,}."
    )


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


def lead_of(incident: Incident) -> str:
    """What moved ahead of the loss; empty where nothing did."""
    first, loss = first_move_of(incident), incident.first_moves.get(Signal.LOSS)
    if first.signal == Signal.LOSS:
        return ""
    ahead = ""
    if loss is not None and loss > first.step:
        ahead = f", {plural(loss - first.step, 'step')} before the loss"
    return f"{capital(word(first.signal))} moved first, at step {first.step:,}{ahead}."
