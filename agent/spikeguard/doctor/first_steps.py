"""The rules that need training: what the first steps showed, in; findings out.

Pure. Values are those that the server is told: they have left the device already.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from spikeguard_protocol.findings import Finding

EARLY: Final = 128  # steps after which weights, norms and checkpoints are judged
WATCHED: Final = 512  # after which the loss is
UNTRAINED: Final = 0.1  # how far a first loss lies from ln(tokens) at most, as a share of it
FALLEN: Final = 0.98  # of the first loss: above it, it has not fallen
LIMITED: Final = 0.01  # how near to each other the largest norms lie under a limit
SPREAD: Final = 3.0  # largest norm over the median, from which a limit would be seen
ROUND: Final = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 7.5, 8.0, 9.0, 10.0)
JUMP: Final = 2.0  # of the rate, in one step
BELOW_PEAK: Final = 0.9  # a schedule that has begun to fall
ZERO: Final = 16  # steps
MOST_LOOKED: Final = 1_024  # steps since the last look

Columns = Mapping[str, Sequence[float]]  # of the steps in which a signal was measured


def early(columns: Columns, *, all_train: bool) -> Iterator[Finding]:
    """After `EARLY` steps. `all_train`: no parameter of the optimizers is frozen."""
    sampled, exact = columns.get("update_norm_sampled", ()), columns.get("update_norm", ())
    if all_train and len(sampled) > EARLY // 2 and not any(sampled) and not any(exact):
        yield Finding(
            "weights_unmoved", f"In {len(sampled)} measured steps the sampled weights did not move."
        )


def unlimited(norms: Sequence[float]) -> Iterator[Finding]:
    """`norms`: of the gradients that the optimizer got. A limit shows in the largest of them:
    several are alike, or one is a round number."""
    seen = sorted((n for n in norms if math.isfinite(n)), reverse=True)
    if len(seen) < EARLY // 2 or not seen[2]:
        return
    largest, usual = seen[0], median(seen)
    alike = seen[0] - seen[1] < LIMITED * seen[0] or seen[1] - seen[2] < LIMITED * seen[1]
    if largest >= SPREAD * usual and not alike and not _round(largest):
        yield Finding(
            "no_clipping",
            f"In {len(seen)} steps the norm that the optimizer got rose to {largest:.3g}, at a "
            f"median of {usual:.3g}, and met no limit.",
        )


def _round(number: float) -> bool:
    digits = number / 10.0 ** math.floor(math.log10(number))
    return any(abs(digits / each - 1.0) < 2e-3 for each in ROUND)


def loss_fell(losses: Sequence[float], tokens: int) -> Iterator[Finding]:
    """After `WATCHED` steps of a run that began untrained; `tokens`: that the model knows."""
    guess = math.log(tokens) if tokens > 1 else 0.0
    if not losses or not guess or abs(losses[0] / guess - 1.0) > UNTRAINED:
        return
    last = median(losses[-EARLY:])
    begins = range(0, len(losses), EARLY)
    least = min(last, *(median(losses[begin : begin + EARLY]) for begin in begins))
    if least > FALLEN * losses[0]:  # one that fell and rose again is a spike's to tell
        yield Finding(
            "loss_not_falling",
            f"It was {losses[0]:.3f} at the first step, as of a guess among {tokens:,} tokens, "
            f"and {last:.3f} in the last {EARLY} of {len(losses)}.",
        )


class Schedule:
    """The rate of the first group as the steps were made with it."""

    def __init__(self) -> None:
        self._seen = 0  # the newest step that was looked at
        self._peak = 0.0

    def look(self, rates: dict[int, float], warms_up: bool) -> Iterator[Finding]:
        """`rates`: by step, the newest last. `warms_up`: whether a run that begins should."""
        newest, seen = next(reversed(rates), 0), self._seen
        if newest <= seen:
            return
        self._seen = newest
        window = [rates.get(step) for step in range(newest - ZERO + 1, newest + 1)]
        if all(rate == 0.0 for rate in window):
            yield Finding("rate_zero", f"It has been 0 since step {newest - ZERO + 1} at least.")
        if seen < EARLY <= newest and warms_up and (first := rates.get(1)):
            most = max(rates.get(step, 0.0) for step in range(1, EARLY + 1))
            if first >= 0.99 * most:
                yield Finding(
                    "no_warmup",
                    f"Step 1 trained with {first:g}, the most of the first {EARLY} steps.",
                )
        for step in range(max(seen, newest - MOST_LOOKED) + 1, newest + 1):
            before, now = rates.get(step - 1), rates.get(step)
            if before is None or now is None:
                continue
            self._peak = max(self._peak, before)
            if 0.0 < before < BELOW_PEAK * self._peak and now > JUMP * before:
                yield Finding(
                    "rate_jump", f"At step {step} it went from {before:.3g} to {now:.3g}."
                )
