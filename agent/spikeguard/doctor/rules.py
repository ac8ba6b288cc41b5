"""The rules: a job's setup in, then what its first steps showed; findings out. What is not known is
None, and no rule speaks of it. Ranges and their sources: docs/doctor.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any, Final

from spikeguard_protocol.findings import Finding


class Family(StrEnum):
    """Optimizers whose rates mean the same."""

    ADAM = "Adam"
    LION = "Lion"
    MUON = "Muon"  # its update scaled by sqrt(max(1, rows / columns)), as first published
    MUON_RMS = "Muon scaled to AdamW's RMS"
    SGD = "SGD"


# The most of peak rates, for matrices at least `WIDTH` wide.
RATES: Final[Mapping[Family, float]] = {
    Family.ADAM: 1e-2,
    Family.LION: 3e-3,
    Family.MUON: 0.2,
    Family.MUON_RMS: 1e-2,
    Family.SGD: 100.0,
}
# RMS of an update over the rate. AdamW: 0.2 to 0.4 (arXiv 2502.16982); Lion: signs.
USUAL_STEP: Final[Mapping[Family, float]] = {
    Family.ADAM: 0.2,
    Family.LION: 1.0,
    Family.MUON_RMS: 0.2,
}
NORMALISED: Final = (Family.MUON, Family.MUON_RMS, Family.LION)  # of whatever gradient
WIDTH: Final = 256  # below it a rate may be higher, in proportion (arXiv 2203.03466)
SLOW_BETA2: Final = 0.998
FEW_TOKENS: Final = 32_768  # a step: there the half-life in tokens asks for a slow beta2
LANGUAGE: Final = 1_000  # tokens of an embedding that make a language model
ADAMS: Final = frozenset(
    {
        *("Adam", "AdamW", "FusedAdam", "DeepSpeedCPUAdam", "NAdam", "SkipStepAdamW", "SOAP"),
        *("Adam8bit", "AdamW8bit", "PagedAdam", "PagedAdamW", "PagedAdam8bit", "PagedAdamW8bit"),
        *("AdamW4bit", "AdamWFp8", "Adam4bit", "AdamFp8", "CPUOffloadOptimizer", "StableAdamW"),
    }
)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that share a rate."""

    where: str  # how a person finds it: `AdamW, group 0`
    family: Family | None = None
    rate: float | None = None  # the largest that is known of it
    decay: float | None = None  # decoupled; None: not known, or a part of the gradient
    beta2: float | None = None
    hidden: bool = True  # holds matrices other than embeddings and the output layer
    width: int = WIDTH  # smaller side of its widest such matrix


@dataclass(frozen=True, slots=True)
class Setup:
    """What is known of a job before it trains."""

    groups: tuple[Group, ...] = ()
    tokens: int | None = None  # that the model knows, where it is a language model
    tokens_per_step: int | None = None
    half: bool = False  # computes, or keeps its weights, in fp16
    scaled: bool | None = None  # there is a gradient scaler


def family_of(kind: str, group: Mapping[str, Any]) -> Family | None:
    """Of an optimizer's class and one of its groups; None where its rates are not known.

    An optimizer that has both says in the group which it is: `use_muon` (Muon's own), `kind`.
    """
    said = str(group.get("kind", "")).lower()
    if group.get("use_muon") is False or said in ("adam", "adamw"):
        return Family.ADAM
    if group.get("use_muon") or said == "muon" or kind in ("Muon", "DistMuon"):
        matched = group.get("adjust_lr_fn") == "match_rms_adamw"
        return Family.MUON_RMS if matched else Family.MUON
    if kind in ADAMS:
        return Family.ADAM
    return {"Lion": Family.LION, "SGD": Family.SGD}.get(kind)


def findings_in(setup: Setup) -> Iterator[Finding]:
    """What the rules say of `setup`; each name once, of the groups that it is true of."""
    judged = [group for group in setup.groups if group.hidden]
    yield from _named("rate_high", (_high(group) for group in judged))
    if setup.tokens is not None and setup.tokens >= LANGUAGE:
        yield from _of_language_models(setup, judged)
    if setup.half and setup.scaled is False:
        yield Finding("fp16_without_scaler", "fp16 is used, and state= holds no gradient scaler.")


def _of_language_models(setup: Setup, judged: list[Group]) -> Iterator[Finding]:
    if (setup.tokens_per_step or FEW_TOKENS) >= FEW_TOKENS:
        slow = (
            f"{group.where}: beta2 {group.beta2:g}"
            for group in judged
            if group.family is Family.ADAM and (group.beta2 or 0.0) >= SLOW_BETA2
        )
        yield from _named("beta2_high", slow)
    decayed = [g for g in judged if g.family in (Family.ADAM, Family.MUON, Family.MUON_RMS)]
    if decayed and all(group.decay == 0.0 for group in decayed):
        yield from _named("no_weight_decay", (f"{g.where}: weight decay 0" for g in decayed))


def _high(group: Group) -> str | None:
    if group.family is None or not group.rate:
        return None
    most = RATES[group.family] * max(1.0, WIDTH / max(1, group.width))
    if group.rate <= most:
        return None
    return f"{group.where}: a rate of {group.rate:g}, usual up to {most:.2g} at its width"


def _named(name: str, said: Iterable[str | None]) -> Iterator[Finding]:
    """One finding for all groups that a rule is true of."""
    found = [text for text in said if text]
    if found:
        more = f"; and {len(found) - 2} more groups" if len(found) > 2 else ""
        yield Finding(name, "; ".join(found[:2]) + more + ".")


# ---- what the first steps showed ---------------------------------------------------------------


EARLY: Final = 128  # steps after which norms are judged
LIMITED: Final = 0.01  # how near to each other the largest norms lie under a limit
SPREAD: Final = 3.0  # largest norm over the median, from which a limit would be seen
ROUND: Final = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 7.5, 8.0, 9.0, 10.0)
JUMP: Final = 2.0  # of the rate, in one step
BELOW_PEAK: Final = 0.9  # a schedule that has begun to fall
MOST_LOOKED: Final = 1_024  # steps since the last look


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
