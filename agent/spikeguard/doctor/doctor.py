"""The doctor of one attempt, on rank 0. `attach()` reads the job from its live objects once, before
any step, and of each tensor that is kept in low precision a sample from the device. From then on
the loop's thread looks once in 16 steps and reads no value of a device; samples are seen where they
are made, in the outbox's thread.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Final

import torch
from torch import Tensor, nn

from spikeguard.doctor.rules import (
    EARLY,
    LANGUAGE,
    NORMALISED,
    USUAL_STEP,
    Family,
    Group,
    Schedule,
    Setup,
    family_of,
    findings_in,
    unlimited,
)
from spikeguard.faults import LINES, Faults, log
from spikeguard.optim.optimizers import names_of
from spikeguard.optim.update_skipper import scalers_of
from spikeguard.ranks.layout import Job
from spikeguard.ranks.model_parts import Modules, local, named_modules, named_parameters
from spikeguard.ranks.rank_group import World
from spikeguard.settings import Settings
from spikeguard_protocol import Record, Samples
from spikeguard_protocol.findings import Finding, Level, by_weight

SEEN: Final = ("grad_norm", "grad_norm_at_step")
_LEFT_OUT: Final = ("update_dropped", "step_skipped")
_KEPT: Final = ("initial_lr", "betas", "eps")  # of a group, which a checkpoint replaces


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

    def seen(self, draft: Any) -> Record:
        """The record that `draft` makes, called without arguments; the doctor sees it too."""
        record: Record = draft()
        self.see(record)
        return record

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


# ---- the job, as the rules want it ---------------------------------------------------------------


LOW: Final = {torch.bfloat16: 8, torch.float16: 11}  # binary digits of a number
SAMPLED: Final = 16_384  # elements of a tensor that are looked at
TOLD_SHARE: Final = 0.05  # of elements that a step at the peak rate cannot change
LATE_SHARE: Final = 0.5  # the same at a tenth of it, where a schedule ends
NAMED: Final = 2  # tensors in a sentence
PADDING: Final = 128  # tokens that a table may have more than the embedding
_MASTERS = ("master", "kahan", "stochastic")  # in names of what keeps small updates
_PEAKS = ("lr", "initial_lr", "max_lr")


def setup_of(job: Job, given: Sequence[Any], tokens_per_step: int | None) -> Setup:
    """`given`: the entries of `attach(state=)`, among which a gradient scaler may be."""
    vocabulary, apart = _embeddings(job.parts)
    trained = (p for _, p in named_parameters(job.parts) if p.requires_grad)
    half = any(p.dtype is torch.float16 for p in trained)
    return Setup(
        groups=tuple(group for _, _, group in _groups(job, apart)),
        tokens=vocabulary or None,
        tokens_per_step=tokens_per_step,
        half=half,
        scaled=bool(scalers_of(given)) if half else None,
    )


def low_precision(job: Job) -> bool:
    """Whether some trained weights are kept in bf16 or fp16 alone."""
    return any(
        p.dtype in LOW and p.requires_grad
        for optimizer in job.optimizers
        if not keeps_small_updates(optimizer)
        for group in optimizer.param_groups
        for p in group["params"]
    )


def keeps_small_updates(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it says that what rounding would lose is kept: fp32 copies, Kahan sums, chance."""
    if type(optimizer).__module__.partition(".")[0] == "heavyball":
        return True
    said = [vars(optimizer), getattr(optimizer, "defaults", {}), *optimizer.param_groups]
    return any(
        any(word in name for word in _MASTERS) and (name == "kahan_sum" or bool(value))
        for names in said
        for name, value in names.items()
        if isinstance(name, str) and value is not False
    )


def rounding(job: Job) -> Iterator[Finding]:
    """The share of elements that a usual step cannot change, where weights are in low precision."""
    names = {id(p): name for name, p in named_parameters(job.parts)}
    asked: list[tuple[str, int]] = []  # name and size of each tensor
    shares: list[Tensor] = []  # of each at the peak rate, and at a tenth of it
    told: list[str] = []
    for optimizer, params, group in _groups(job, set()):
        step = usual_step(group)
        if step is None or keeps_small_updates(optimizer):
            continue
        low = [p for p in params if p.dtype in LOW and p.requires_grad and local(p).numel()]
        for parameter in low:
            asked.append((names.get(id(parameter), "?"), parameter.numel()))
            shares += [_blocked(parameter, step), _blocked(parameter, step / 10)]
        if low:
            told.append(f"{group.where} at rate {group.rate:g}: a usual step is {step:.2g}")
    if not asked:
        return
    read = _read(shares)
    whole = sum(size for _, size in asked)
    now, late = (
        sum(share * size for share, (_, size) in zip(read[n::2], asked, strict=True)) / whole
        for n in (0, 1)
    )
    if now >= TOLD_SHARE or late >= LATE_SHARE:
        most = sorted(zip(read[::2], asked, strict=True), reverse=True)[:NAMED]
        tensors = ", ".join(f"{name[-40:]} {share:.0%}" for share, (name, _) in most)
        yield Finding(
            "low_precision_weights",
            f"{told[0]}, which cannot change {now:.0%} of these weights ({tensors}), and at a "
            f"tenth of the rate {late:.0%}.",
        )


def usual_step(group: Group) -> float | None:
    """How far it moves an element, where that does not depend on the gradient's size."""
    if group.family is None or not group.rate:
        return None
    if group.family is Family.MUON:  # an orthogonal matrix, scaled: RMS 1 / sqrt(inputs)
        return float(group.rate / group.width**0.5)
    of_rate = USUAL_STEP.get(group.family)
    return of_rate * group.rate if of_rate is not None else None


def _read(scalars: Sequence[Tensor]) -> list[float]:
    """In one copy; waits for it."""
    values: list[float] = torch.stack([s.to(scalars[0].device) for s in scalars]).tolist()
    return values


@torch.no_grad()
def _blocked(parameter: Tensor, step: float) -> Tensor:
    """Share of its elements that adding `step` leaves as they are, () fp32."""
    values = local(parameter.detach()).reshape(-1)
    values = values[:: max(1, values.numel() // SAMPLED)].to(torch.float32)
    exponents = torch.frexp(values).exponent
    half_way = torch.exp2((exponents - LOW[parameter.dtype] - 1).to(torch.float32))
    return ((half_way > step) & (values != 0)).float().mean()


def _groups(
    job: Job, apart: set[int]
) -> Iterator[tuple[torch.optim.Optimizer, list[Tensor], Group]]:
    """Of every optimizer; `apart`: parameters that are no hidden matrices, by identity."""
    names = names_of(job.optimizers)
    for optimizer, name in zip(job.optimizers, names, strict=True):
        kind = type(optimizer).__name__
        for number, group in enumerate(optimizer.param_groups):
            params = list(group["params"])
            matrices = [p for p in params if p.dim() >= 2 and id(p) not in apart]
            coupled = kind == "Adam" and not group.get("decoupled_weight_decay")
            yield (
                optimizer,
                params,
                Group(
                    where=f"{name}, group {number}" if len(optimizer.param_groups) > 1 else name,
                    family=family_of(kind, group),
                    rate=peak(group),
                    decay=None if coupled else _number(group.get("weight_decay")),
                    beta2=_beta2(group),
                    hidden=bool(matrices),
                    width=max((min(p.shape[-2:]) for p in matrices), default=1),
                ),
            )


def peak(group: Mapping[str, Any]) -> float | None:
    """The largest rate that a group shows: what a schedule began from, or reaches."""
    rates = [rate for name in _PEAKS if (rate := _number(group.get(name))) is not None]
    return max(rates, default=None)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, Real | Tensor) else None


def _beta2(group: Mapping[str, Any]) -> float | None:
    betas = group.get("betas")
    return _number(betas[1]) if isinstance(betas, tuple | list) and len(betas) > 1 else None


def _embeddings(parts: Modules) -> tuple[int, set[int]]:
    """Tokens of the largest embedding, 0 where there is none; and by identity weights with a row a
    token: embeddings, and the layer that gives the tokens' logits."""
    tables = [m for m in named_modules(parts).values() if isinstance(m, nn.Embedding)]
    vocabulary = max((m.num_embeddings for m in tables), default=0)
    padded = vocabulary + (PADDING if vocabulary >= LANGUAGE else 1)
    rows = {
        id(p)
        for _, p in named_parameters(parts)
        if vocabulary and p.dim() >= 2 and vocabulary <= p.shape[0] < padded
    }
    return vocabulary, rows | {id(m.weight) for m in tables}
