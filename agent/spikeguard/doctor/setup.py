"""The rules that need no training: a job's setup in, findings out.

Pure. `attach()` fills a `Setup` from live objects; what is not known is None, and no rule speaks of
it. Ranges and their sources: docs/doctor.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
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
