"""What is kept of the rows around an onset, from which the cause of an incident is read.

In constant memory: the newest rows of each watched signal, and of an open incident the last before
its onset and the first from there on. What they mean is `cause`'s. And what the batch of an onset
shows, as sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from spikeguard_core.detection.noise import median
from spikeguard_core.detection.sample import Sample, SampleColumns
from spikeguard_core.events import Trend
from spikeguard_protocol import (
    RATES_OF_GROUPS,
    BatchDetail,
    BatchRange,
    OptionalSignal,
    Signal,
    TokenHistogram,
)

TOKEN_ENTROPY = OptionalSignal.TOKEN_ENTROPY.value
UNSEEN_TOKENS = OptionalSignal.UNSEEN_TOKENS.value
WORST_SEQUENCE = OptionalSignal.LOSS_SEQUENCE_MAX.value
STEP_SKIPPED = OptionalSignal.STEP_SKIPPED.value
UNCHANGED_PARAMETERS = OptionalSignal.UNCHANGED_PARAMETERS.value
ADAM_BETA2 = OptionalSignal.ADAM_BETA2.value
REPLICAS_APART = "replicas_apart"  # ranks whose weights were not those of the most; by the agent
REPLICA_APART = "replica_apart"  # the lowest of them
RANKS_LOST_STEP = "ranks_lost_step"  # 1.0 where the sample is rank 0's alone; by the agent
OTHER_DATA = "other_data"  # 1.0 where a batch was read again and was another one; by the agent
WATCHED: tuple[str, ...] = (
    Signal.LOSS.value,
    Signal.GRAD_NORM.value,
    Signal.GRAD_NORM_AT_STEP.value,
    Signal.UPDATE_NORM.value,
    Signal.UPDATE_NORM_SAMPLED.value,
    Signal.ADAM_V_NORM.value,
    ADAM_BETA2,
    Signal.PARAM_NORM.value,
    Signal.LR.value,
    *RATES_OF_GROUPS,
    TOKEN_ENTROPY,
    UNSEEN_TOKENS,
    WORST_SEQUENCE,
    STEP_SKIPPED,
    UNCHANGED_PARAMETERS,
    REPLICAS_APART,
    REPLICA_APART,
    RANKS_LOST_STEP,
)
BEFORE = 16  # rows of a signal that are kept from before the onset
AFTER = 24  # and from the onset on
NEWEST = BEFORE + AFTER
RISE = 1.3  # of a learning rate, from which it counts as raised
NEAR = 8  # steps on either side of an onset whose batches stay with the incident
MANY_NEW = 0.02  # share of tokens that no batch before held, that is worth a word
MUCH_MORE = 3.0  # times its share before, of a token that stands out
LEAST_SHARE = 0.02  # of a batch, that such a token makes up


def _rounded(value: float) -> float:
    """To 7 digits: as many as the fp32 norms have."""
    return float(f"{value:.7g}")


@dataclass(slots=True)
class Trace:
    """Rows of one signal, of rising steps."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, step: int, value: float) -> None:
        """Take a row, unless its step was already there."""
        if not self.steps or step > self.steps[-1]:
            self.steps.append(step)
            self.values.append(value)

    def keep(self, rows: int) -> None:
        """Only the newest `rows`."""
        del self.steps[:-rows], self.values[:-rows]

    def cut(self, step: int) -> None:
        """Forget `step` and what follows."""
        keep = sum(1 for known in self.steps if known < step)
        del self.steps[keep:], self.values[keep:]

    def rows(self) -> list[tuple[int, float]]:
        return list(zip(self.steps, self.values, strict=True))

    def pairs(self) -> Iterator[tuple[tuple[int, float], tuple[int, float]]]:
        """Neighbouring rows."""
        return pairwise(self.rows())

    def at(self, step: int) -> float | None:
        """What was measured at `step`."""
        return dict(self.rows()).get(step)


@dataclass(slots=True)
class Traces:
    """The newest rows of every watched signal."""

    of: dict[str, Trace] = field(default_factory=lambda: {name: Trace() for name in WATCHED})

    def __post_init__(self) -> None:
        for name in WATCHED:  # those too that were not watched when a state was written
            self.of.setdefault(name, Trace())

    def take(self, sample: Sample) -> None:
        """Take what one sample has of them."""
        for name, trace in self.of.items():
            if (value := sample.values.get(name)) is not None:
                trace.add(sample.step, value)
                trace.keep(NEWEST)

    def take_all(self, samples: SampleColumns) -> None:
        """Take samples of rising steps, newer than all before, the same as one by one."""
        for name in self.of.keys() & samples.signals.keys():
            rows, values = samples.having(name)
            trace, steps = self.of[name], samples.steps
            trace.steps += [steps[row] for row in rows[-NEWEST:]]
            trace.values += values[-NEWEST:]
            trace.keep(NEWEST)

    def cut(self, step: int) -> None:
        """The run went back: forget `step` and what follows."""
        for trace in self.of.values():
            trace.cut(step)


@dataclass(slots=True)
class Evidence:
    """The rows around one onset, and what came of going back over it."""

    onset_step: int = 0
    onset_batches: BatchRange | None = None
    trend: Trend | None = None  # of the loss, from before the onset
    alone: bool = False  # the row of the onset stood out, the next was back
    before: dict[str, Trace] = field(default_factory=dict)
    after: dict[str, Trace] = field(default_factory=dict)
    again_step: int | None = None  # where it came back after a command
    again_batches: BatchRange | None = None
    passed: bool = False  # the onset's batches were trained on again and nothing stood out
    first_step: int | None = None  # where it began, if these rows are of where it came back
    first_batches: BatchRange | None = None  # of its rise, up to its peak
    left_out: BatchRange | None = None  # from the onset's batches on, after going back
    again_behind: BatchRange | None = None  # `left_out` when it came back
    beyond: bool = False  # batches behind the onset's were trained on since the newest command
    first_rate: float | None = None  # usual learning rate where it began, as `first_step`
    fell_after: int | None = None  # the newest step before the loss had fallen at once, earlier on,
    level_then: float = 0.0  # and the level that it had there
    highest_rate: float = 0.0  # learning rate of the run so far,
    highest_rate_step: int = 0  # and where it was first so high
    raised_step: int | None = None  # from the onset on: the learning rate rose above all before

    def see(self, sample: Sample) -> None:
        """Take one more sample of the incident: the first rows, and as many from where the learning
        rate rose."""
        rates, rate = self.whole(Signal.LR.value).values, sample.values.get(Signal.LR.value, 0.0)
        if self.raised_step is None and rates and rate >= RISE * max(rates):
            self.raised_step = sample.step
        since = self.onset_step if self.raised_step is None else self.raised_step
        for name in WATCHED:
            value = sample.values.get(name)
            if value is not None and sample.step >= self.onset_step:
                trace = self.after.setdefault(name, Trace())
                if sum(step >= since for step in trace.steps) < AFTER:
                    trace.add(sample.step, _rounded(value))

    def see_again(self, batches: BatchRange | None, went_back: bool) -> None:
        """`batches` were trained on after a command."""
        then = self.onset_batches
        if batches is None or then is None:
            return
        self.passed |= then.first < batches.end and batches.first < then.end
        if self.beyond or batches.first < then.end:
            return
        self.beyond = True
        if went_back and not self.passed:
            self.left_out = BatchRange((self.first_batches or then).first, batches.first)

    def come_back(self, step: int, batches: BatchRange | None) -> None:
        """The spike came back at `step`, which consumed `batches`."""
        self.again_step, self.again_batches, self.passed = step, batches, False
        self.again_behind = self.left_out

    def anew(self, traces: Traces) -> Evidence:
        """The rows around where it came back: a second fault is no repetition of the first."""
        step, began = self.again_step, self.first_step
        assert step is not None
        fresh = gather_evidence(traces, step, self.again_batches, self.trend, alone=False)
        fresh.again_step, fresh.again_batches = step, self.again_batches
        fresh.again_behind = self.again_behind
        fresh.first_step = self.onset_step if began is None else began
        rates = [rate for rate in self._before(Signal.LR.value).values if math.isfinite(rate)]
        usual_rate = median(rates) if rates else None
        fresh.first_rate = usual_rate if began is None else self.first_rate
        fresh.first_batches = self._rise() if began is None else self.first_batches
        fresh.highest_rate, fresh.highest_rate_step = self.highest_rate, self.highest_rate_step
        return fresh

    def _rise(self) -> BatchRange | None:
        """The batches from the onset to the highest loss."""
        batches, losses = self.onset_batches, self.after.get(Signal.LOSS.value, Trace()).rows()
        finite = [row for row in losses if math.isfinite(row[1])]
        if batches is None or not finite:
            return batches
        peak, _ = max(finite, key=lambda row: row[1])
        return rise_of(batches, peak - self.onset_step)

    def _before(self, name: str) -> Trace:
        return self.before.get(name, Trace())

    def whole(self, name: str) -> Trace:
        """Every row that is kept of a signal."""
        before, after = self._before(name), self.after.get(name, Trace())
        return Trace(before.steps + after.steps, before.values + after.values)


def rise_of(onset: BatchRange, steps: int) -> BatchRange:
    """The batches of an onset and of so many steps behind it, as far as rows are kept."""
    return BatchRange(onset.first, onset.end + min(max(steps, 0), AFTER) * len(onset))


def gather_evidence(
    traces: Traces,
    onset_step: int,
    onset_batches: BatchRange | None,
    trend: Trend | None,
    alone: bool,
) -> Evidence:
    """What is known when an incident opens: the newest rows, parted at its onset."""
    evidence = Evidence(onset_step, onset_batches, trend, alone)
    for name, trace in traces.of.items():
        if not trace.steps:
            continue
        early = [row for row in trace.rows() if row[0] < onset_step][-BEFORE:]
        late = [row for row in trace.rows() if row[0] >= onset_step][:AFTER]
        evidence.before[name] = _trace(early)
        evidence.after[name] = _trace(late)
    return evidence


def _trace(rows: Sequence[tuple[int, float]]) -> Trace:
    return Trace([step for step, _ in rows], [_rounded(value) for _, value in rows])


def onset_batch(batches: Sequence[BatchDetail], onset_step: int) -> BatchDetail | None:
    """The batch of the onset, of the rank that it hurt most; else of the step nearest to it."""
    if not batches:
        return None
    nearest = min((abs(b.step - onset_step), b.step) for b in batches)[1]
    here = sorted((b for b in batches if b.step == nearest), key=lambda batch: batch.rank)
    losses = [-math.inf if b.sequence_loss is None else b.sequence_loss for b in here]
    return here[int(np.argmax(losses))]  # NaN is the highest


def worst_sequence(batch: BatchDetail) -> str | None:
    """The sequence that stands out, as the beginning of a sentence."""
    if batch.worst is None:
        return None
    which = f"Sequence {batch.worst + 1} of {batch.sequences} on rank {batch.rank}"
    if batch.sequence_loss is None:
        return f"{which} has the rarest tokens"
    if not math.isfinite(batch.sequence_loss):
        return f"{which} has a loss that is not finite"
    return f"{which} has the highest loss, {batch.sequence_loss:.4g} nats a token"


def contrast(histogram: TokenHistogram | None) -> str | None:
    """How the tokens differ from those of the batches before; None where nothing is known."""
    if histogram is None:
        return None
    found, new = list[str](), histogram.bins[0] if histogram.bins else 0.0
    if new >= MANY_NEW:
        found.append(f"{new:.1%} of the batch's tokens had not occurred in them")
    if histogram.ids:
        share, before = histogram.shares[0], histogram.shares_before[0]
        text = f" ({histogram.texts[0]!r})" if histogram.texts and histogram.texts[0] else ""
        if share >= max(LEAST_SHARE, MUCH_MORE * before):
            token = f"token {histogram.ids[0]}{text}"
            found.append(f"{token} makes up {share:.1%} of it, {before:.1%} before")
    against = f"the {histogram.before} batches before step {histogram.before_last + 1}"
    return f"Against {against}: {'; '.join(found) or 'the usual tokens in their usual shares'}"
