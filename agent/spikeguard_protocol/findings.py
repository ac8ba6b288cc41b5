"""What the doctor finds in a job: its rules as data, and how a finding travels.

A rule says what follows and what helps; only the evidence is the job's own. So a finding travels
as one text, `finding.NAME`, in the settings of `AttemptStarted`, and is put together where it is
shown. A name that a reader does not know is shown with its evidence alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from spikeguard_protocol.messages import MAX_SETTINGS

PREFIX = "finding."
MAX_EVIDENCE = 300  # characters; the server shows no more of one setting


class Level(StrEnum):
    """How much a finding matters."""

    WARNING = "warning"  # the run is likely to be worse for it
    NOTICE = "notice"  # unusual: worth a look, and fine where it is meant


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that may be wrong with a job."""

    name: str  # by which it is silenced
    level: Level
    title: str
    consequence: str
    remedy: str
    source: str  # an arXiv number, or whose documentation


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a job meets, with what was seen of it."""

    name: str
    evidence: str

    @property
    def rule(self) -> Rule:
        """What is known of it."""
        return RULES.get(self.name) or Rule(self.name, Level.NOTICE, self.name, "", "", "")

    @property
    def sentences(self) -> str:
        """Evidence, consequence, remedy and source in one line."""
        rule = self.rule
        parts = (self.evidence, rule.consequence, rule.remedy, rule.source and f"({rule.source})")
        return " ".join(part for part in parts if part)


def _rules(level: Level, *rows: tuple[str, str, str, str, str]) -> list[Rule]:
    return [Rule(name, level, *texts) for name, *texts in rows]


_ALL = (
    *_rules(
        Level.WARNING,
        (
            "low_precision_weights",
            "Weights in low precision without a copy in fp32",
            "An update smaller than half the distance to the next number rounds to nothing: these "
            "weights learn slowly, and stop as the rate falls.",
            "Keep the weights in fp32 and compute in bf16 (autocast, FSDP2's MixedPrecisionPolicy),"
            " or use an optimizer with fp32 master weights, Kahan sums or stochastic rounding.",
            "arXiv 2010.06192",
        ),
        (
            "rate_high",
            "The learning rate is above its optimizer's usual range",
            "Rates of one optimizer do not carry over to another: this one is likely to diverge.",
            "Begin from the optimizer's own range: AdamW up to 0.01, Lion a third of AdamW's, Muon "
            "about 0.02, or AdamW's where its update is scaled to AdamW's RMS.",
            "arXiv 2309.14322, 2302.06675, 2502.16982",
        ),
        (
            "restored_rate",
            "The checkpoint's rate replaced the configured one",
            "A scheduler and an optimizer load their rates with their state: a rate changed in the "
            "configuration has no effect after the restart.",
            "Set initial_lr, lr and the scheduler's base_lrs after loading, if the new rate is "
            "meant.",
            "torch.optim.lr_scheduler.LRScheduler.load_state_dict",
        ),
        (
            "fp16_without_scaler",
            "fp16 without a gradient scaler",
            "Gradients below 2**-24 (6e-8) become zero in fp16, and large ones infinite.",
            "Use torch.amp.GradScaler, or bf16 where the device has it.",
            "arXiv 1710.03740",
        ),
        (
            "non_finite_values",
            "Values that are not finite",
            "A model that is loaded from it computes NaN.",
            "Go back to an earlier checkpoint: training does not mend them.",
            "docs/doctor.md",
        ),
        (
            "negative_second_moment",
            "A second moment below zero",
            "Adam takes its root: the next step makes NaN of these weights.",
            "Go back to an earlier checkpoint: no update makes one negative, damage does.",
            "arXiv 1412.6980",
        ),
    ),
    *_rules(
        Level.NOTICE,
        (
            "no_warmup",
            "The first step has the full learning rate",
            "Adam's first updates rest on few gradients and are as long as any: a common cause of "
            "early spikes.",
            "Raise the rate linearly over the first steps (2/(1 - beta2) of them).",
            "arXiv 1910.04209, 2406.09405",
        ),
        (
            "rate_jump",
            "The learning rate jumped up",
            "Adam's second moment still belongs to the smaller rate's gradients: a spike often "
            "follows.",
            "If no restart of the schedule is meant, look at the counter it goes by.",
            "arXiv 2403.08763",
        ),
        (
            "beta2_high",
            "A slow second moment on a language model",
            "Adam notices larger gradients late, and its update is too long until it has: spikes "
            "are more frequent than with 0.95.",
            "Use betas=(0.9, 0.95), as GPT-3 and LLaMA do. With batches of a few thousand tokens "
            "a slow one is right.",
            "arXiv 2304.13013, 2005.14165, 2302.13971, 2507.07101",
        ),
        (
            "no_weight_decay",
            "No weight decay",
            "Weights and logits grow without a bound through a long run, which ends in low "
            "precision's limits or in spikes.",
            "Decay the matrices (0.1), not norms and biases.",
            "arXiv 2310.04415, 2502.16982",
        ),
        (
            "no_clipping",
            "Gradients are not clipped",
            "One bad batch moves the weights as far as its gradient is long.",
            "Call guard.clip_grad_norm_ before the optimizer's step, with about the usual norm.",
            "arXiv 1211.5063, 2005.14165",
        ),
    ),
)
RULES: Final[Mapping[str, Rule]] = {rule.name: rule for rule in _ALL}


def by_weight(findings: Iterable[Finding]) -> list[Finding]:
    """Warnings first, else as they were found."""
    return sorted(findings, key=lambda each: each.rule.level is Level.NOTICE)


def findings_to_settings(findings: Iterable[Finding], taken: int) -> dict[str, str]:
    """The entries that stand for `findings` in the settings of an attempt, as many as have room
    beside the `taken` entries there."""
    told = by_weight(findings)[: max(0, MAX_SETTINGS - taken)]
    return {f"{PREFIX}{each.name}": each.evidence[:MAX_EVIDENCE] for each in told}


def findings_from_settings(settings: Mapping[str, str]) -> list[Finding]:
    """Those in `settings`, warnings first."""
    found = [(n, text) for n, text in sorted(settings.items()) if n.startswith(PREFIX)]
    return by_weight(Finding(name.removeprefix(PREFIX), text) for name, text in found)


def without_findings(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that are no findings."""
    return {name: text for name, text in settings.items() if not name.startswith(PREFIX)}
