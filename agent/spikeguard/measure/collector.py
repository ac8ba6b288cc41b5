"""What is measured at each step, and when.

Every step: loss, grad_norm, lr, update_norm of a fixed sample, step time. Every
`slow_signals_every` steps, each at a step of its own, and every step while the server is attentive:
param_norm, adam_v_norm, the exact update_norm and the gradient norm of each parameter.
Cost: the floor is bytes over bandwidth. Of P bytes of parameters a plain step reads P for the norm
that clipping takes anyway and moves 0.35 P for the sample; of ten steps one reads P (param_norm),
one P (adam_v_norm) and one moves 6 P (the exact update): 1.15 P a step on the average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import torch
from torch import Tensor

from spikeguard.faults import Faults
from spikeguard.measure.norms import (
    ByLayer,
    GlobalNorms,
    LossMeter,
    Parameters,
    combine,
    gradients,
    own_norm,
    second_moments,
)
from spikeguard.measure.readback import Row, send, send_all
from spikeguard.measure.signals import (
    OptionalSignals,
    OwnSignals,
    beta2_of,
    loss_scale_of,
    rates_of_groups,
)
from spikeguard.measure.update_norms import all_parameters, fits, samples_of, unchanged
from spikeguard.optim.buffers import Buffers
from spikeguard.optim.clipping import Rule, under
from spikeguard.optim.update_skipper import (
    UpdateSkipper,
    found_by_scaler,
    loss_scale,
    scalers_of,
    still_scaled,
)
from spikeguard.ranks.layout import Job
from spikeguard.ranks.model_parts import local, onto, parameters
from spikeguard.ranks.replicas import bits_of, compares_at
from spikeguard.ranks.vote import LOSS_SUM, LOSS_WEIGHT
from spikeguard.settings import Settings
from spikeguard_protocol import OptionalSignal, Signal

# plain strings: a member of an enum takes longer to look up and to hash
ADAM_V_NORM = Signal.ADAM_V_NORM.value
GRAD_NORM = Signal.GRAD_NORM.value
GRAD_NORM_AT_STEP = Signal.GRAD_NORM_AT_STEP.value
LOSS = Signal.LOSS.value
LR = Signal.LR.value
PARAM_NORM = Signal.PARAM_NORM.value
STEP_SKIPPED = OptionalSignal.STEP_SKIPPED.value
UNCHANGED_PARAMETERS = OptionalSignal.UNCHANGED_PARAMETERS.value
UPDATE_DROPPED = Signal.UPDATE_DROPPED.value
UPDATE_NORM = Signal.UPDATE_NORM.value
UPDATE_NORM_SAMPLED = Signal.UPDATE_NORM_SAMPLED.value
PARAM_QUARTER, UPDATE_QUARTER, MOMENT_QUARTER = 1, 2, 3  # of a cycle of slow signals


class Collector:
    """Measures between `guard.step()` and `guard.step()`."""

    def __init__(
        self,
        job: Job,
        update_skipper: UpdateSkipper,
        settings: Settings,
        faults: Faults,
        tokens_per_step: int | None = None,
        rule: Rule | None = None,
        state: Sequence[Any] = (),
        *,
        counts_unchanged: bool = False,
    ) -> None:
        """`counts_unchanged`: weights are kept in low precision, where small updates are lost."""
        self.update_skipper, topology, self._faults = update_skipper, job.topology, faults
        self._counts_unchanged = counts_unchanged
        self._modules, self._optimizers, self._topology = job.parts, job.optimizers, topology
        self._listed = Parameters(job.parts, job.optimizers)
        self._norms = GlobalNorms(topology, self._listed, lambda: update_skipper.armed, faults)
        self._layers: ByLayer | None = None
        self._step = 0
        self._ranks, self._tokens = topology.ranks, tokens_per_step
        self._ended_at: float | None = None  # of the newest step
        self._cycle = settings.slow_signals_every
        quarters = (PARAM_QUARTER, UPDATE_QUARTER, MOMENT_QUARTER)
        places = (quarter * self._cycle // 4 for quarter in quarters)
        self._param_place, self._update_place, self._moment_place = places
        self._by_layer = settings.flight_recorder > 0
        self._weights = parameters(job.parts)  # those that are not trained, too
        self._compare_every = settings.replica_checksum_every
        self.compares = topology.replicas and self._compare_every > 0
        self.snapshot_due: Callable[[int], bool] = lambda _: False  # at the end of a step
        self._samples = samples_of(job.parts, job.optimizers, topology)
        self.buffers = Buffers(job.parts)
        self._everything = [all_parameters(each, topology) for each in job.optimizers]
        self._exact = fits(job.optimizers, settings)
        self._begun = 0  # a bit for each optimizer whose step of this update has begun
        self.losses = LossMeter(topology.has_loss)
        self.optional, self.own = OptionalSignals(settings.flight_recorder), OwnSignals(faults)
        self.attentive = False
        self._scalars: dict[str, Tensor] = {}
        self._known: dict[str, float] = {}
        self._grad_norm: Tensor | None = None
        self._limit: float | None = None  # that the step's norm was clipped to
        self.rule = rule  # clips each step, in the loop's call or before the update
        self.clips = rule is not None  # the loop has gradients clipped here
        self._rates: Sequence[Any] = ()
        self._first_rate: Any = None  # of the update that is being made
        self._stepped = False  # the optimizer's, since the last `finish_step`
        self._scaler = next(iter(scalers_of(state)), None)

    @torch.no_grad()
    def clip(self, max_norm: float | None, scale: Tensor | None = None) -> Tensor:
        """Take the norm before clipping, then clip as the rule says, and to `max_norm` at most;
        returns that norm.

        `scale`: what the gradients are still multiplied by. On a CPU the norm is read only later:
        it is not to be changed in place.
        """
        self._begun = 0  # what is measured here is judged anew
        norm = self._measured()
        if norm is None:
            return torch.zeros(())
        if scale is not None:
            norm = norm / scale
        self._grad_norm = self._scalars[GRAD_NORM] = norm
        if self.rule is not None:
            clipped = self.rule.judge(norm)
            clipped = clipped if max_norm is None else under(clipped, norm, max_norm)
            self._scalars |= clipped.signals
            self._scale(clipped.factor)
        elif max_norm is not None:
            if self._scaler is not None and (
                problem := still_scaled(self._scaler, self._optimizers)
            ):
                self._faults.note("clip", problem)
            # torch's own takes no DTensors of two meshes at once
            self._scale((max_norm / (norm + 1e-6)).clamp(max=1.0))
            self._limit = max_norm if isinstance(max_norm, float | int) else None
            self.clips = True
        return norm

    def _scale(self, factor: Tensor) -> None:
        """Multiply all gradients."""
        alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for grad in gradients(self._listed.tensors):
            shard = grad._values() if grad.layout is torch.sparse_coo else local(grad)
            alike.setdefault((shard.device, shard.dtype), []).append(shard)
        for (device, dtype), shards in alike.items():
            # with a factor of another type CUDA launches a kernel for each tensor
            torch._foreach_mul_(shards, onto(factor, device, dtype))

    def state_dict(self) -> dict[str, Any]:
        """What clipping has learnt: goes into snapshots and checkpoints."""
        rule, clipping = self.rule, None
        if rule is not None:
            clipping = {"kind": type(rule).__name__, "state": rule.state_dict()}
        return {
            "clipping": clipping,
            "tokens": None if self.optional.idle else self.optional.tokens.known(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to what was known then."""
        if self.buffers.any:
            self.buffers.keep()  # restored already
        if not self.optional.idle or state.get("tokens") is not None:
            self.optional.tokens.restore(state.get("tokens"))
        saved, rule = state["clipping"], self.rule
        if rule is not None and saved is not None and saved["kind"] == type(rule).__name__:
            rule.load_state_dict(saved["state"])

    def _measured(self) -> Tensor | None:
        """The gradients' global norm, the same bits whether or not each one's is kept."""
        if self._listed.outdated:  # groups were added
            self._listed.grow()
            self._everything = [all_parameters(each, self._topology) for each in self._optimizers]
            self._weights = parameters(self._modules)
        due = (self._step + 1) % self._cycle == self._cycle - 1
        if not self._topology.parted:  # else a rank that hears the server earlier must not decide
            due = due or self.attentive  # which collectives the job's ranks make
        if not (self._by_layer and due):
            return self._norms.norm()
        norm, self._layers = self._norms.by_name()
        return norm

    def begins_update(self, number: int) -> bool:
        """Note that an optimizer's step begins; whether an update of all of them does with it."""
        bit = 1 << number
        begins = not self._begun or bool(self._begun & bit)
        self._begun = bit if begins else self._begun | bit
        return begins

    @torch.no_grad()
    def before_step(
        self, step: int, number: int = 0, rates: Sequence[Any] = (), begins: bool = True
    ) -> None:
        """In an optimizer's pre-hook: judge the update and remember where parameters stand.

        `begins`: it is the first of the optimizers to make this update.
        """
        if self.update_skipper.lent:  # what a step that failed has left on the optimizer
            self.update_skipper.after_step()
        self._rates, self._stepped = rates, True
        optimizer = self._optimizers[number]
        found = found_by_scaler(optimizer)
        if found is not None:
            self._scalars[STEP_SKIPPED] = found
        if begins:
            self._judge(optimizer, found)
        self.update_skipper.hold(number, found)
        self._samples[number].before_step()
        due = self.attentive or step % self._cycle == self._update_place
        if due and self._exact:
            self._everything[number].before_step()

    def _judge(self, optimizer: torch.optim.Optimizer, found: Tensor | None) -> None:
        """Decide whether this update of all optimizers is made."""
        if len(self._optimizers) > 1:  # what an earlier one of this step has left
            self._scalars.pop(UPDATE_NORM_SAMPLED, None)
            self._scalars.pop(UPDATE_NORM, None)
        norm = self._norm_at_step(loss_scale(optimizer))
        if norm is not None:
            loss = self.losses.mean if self._ranks == 1 else None  # must be equal on all ranks
            dropped = self.update_skipper.judge(norm, loss, found, self._norms.unable)
            self._scalars[UPDATE_DROPPED] = dropped
            if self.buffers.any and self.update_skipper.lends:
                self.buffers.put_back(dropped)

    def _norm_at_step(self, scale: Tensor | None) -> Tensor | None:
        norm, by_rule = self._grad_norm, False
        if norm is None and self.rule is not None:
            self.clip(None, scale)
            norm, by_rule = self._grad_norm, True
        elif norm is None and (norm := self._measured()) is not None:
            self._scalars[GRAD_NORM_AT_STEP] = norm if scale is None else norm / scale
        elif norm is not None and scale is not None:
            self._scalars[GRAD_NORM] = norm / scale
            self._limit = None  # that was one of the scaled norm
        if norm is None or scale is None:
            return norm
        if self._layers is not None:
            self._layers = ByLayer(self._layers.names, self._layers.norms / scale)
        return norm if by_rule else norm / scale

    @torch.no_grad()
    def after_step(self, number: int = 0) -> None:
        """In an optimizer's post-hook: how far its parameters moved."""
        if self.update_skipper.lent:
            self.update_skipper.after_step()
        self._add_norm(UPDATE_NORM_SAMPLED, self._samples[number].after_step(self._rates))
        if self._everything[number].armed:
            self._add_norm(UPDATE_NORM, self._everything[number].after_step(self._rates))
        if self._rates and not number:
            self._first_rate = rate = self._rates[0]
            if isinstance(rate, Tensor):
                self._scalars[LR] = rate.clone()
            elif rate is not None:
                self._known[LR] = float(rate)
        if number or len(self._rates) > 1:
            told = rates_of_groups(self._optimizers, number, self._rates, self._first_rate)
            for name, rate in told.items():
                self.note(name, rate)

    def _add_norm(self, signal: str, norm: Tensor | None) -> None:
        """That of one optimizer's parameters, to those of the others in this update."""
        if norm is not None:
            known = self._scalars.get(signal) if len(self._optimizers) > 1 else None
            self._keep(signal, norm if known is None else combine([known, norm]))

    def finish_step(self, step: int, segment: int, position: int) -> Row:
        """Send the step's scalars on their way.

        Signals that read everything are measured once in a cycle, each at a step of its own; none
        of these is a multiple of the cadence, where snapshots are usually taken.
        """
        place = step % self._cycle
        if place == self._param_place or self.attentive:
            trained = self._listed.trained
            self._measure(PARAM_NORM, trained, trained)
        if place == self._moment_place or self.attentive:
            moments = second_moments(self._optimizers)
            self._measure(ADAM_V_NORM, [*moments], [*moments.values()])
            self._known |= beta2_of(self._optimizers) if moments else {}
        if self.buffers.any:
            self.buffers.keep()
        last = place == self._cycle - 1  # where no other slow signal and no snapshot falls
        if self._counts_unchanged and self._stepped and (last or self.attentive):
            self._keep(UNCHANGED_PARAMETERS, unchanged(self._samples))
        if self.compares and (compares_at(step, self._compare_every) or self.snapshot_due(step)):
            self._scalars |= bits_of(self._weights)
        if self._scaler is not None:
            self._scalars |= loss_scale_of(self._scaler)
        self._keep_loss()
        if not self._stepped:  # where a GradScaler finds inf, an optimizer not fused is not asked
            self._known[STEP_SKIPPED] = 1.0
        layers = send_all(*self._layers) if self._layers is not None else None
        if not self.optional.idle:
            self._scalars |= self.optional.take()
        if self.optional.batches.on:
            self.optional.batches.close(segment, step, position)
        for name, value in self.own.take().items() if self.own.values else ():
            if name not in self._scalars and name not in self._known:  # measured goes first
                self.note(name, value)
        before, self._ended_at, self._step = self._ended_at, monotonic(), step
        row = Row(
            step,
            segment,
            position,
            self._ended_at,
            before,
            self._tokens,
            self._known,
            send(self._scalars),
            layers,
            self._limit,
        )
        self._forget()
        return row

    @torch.no_grad()
    def _measure(self, signal: str, of: Sequence[Tensor], tensors: Sequence[Tensor]) -> None:
        """The norm of `tensors`, which lie as the parameters `of`."""
        if not self._topology.parted:
            self._keep(signal, own_norm(tensors))
        else:
            norm = own_norm(tensors, [self._topology.copies(p) for p in of])
            self._keep(signal, norm if norm is not None else torch.zeros(()))

    def reset(self) -> None:
        """Forget what was measured since the last step."""
        self._forget()
        self.losses.take()
        self.optional.reset()
        self.own.take()

    def _forget(self) -> None:
        self._scalars, self._known, self._grad_norm, self._rates = {}, {}, None, ()
        self._layers, self._stepped, self._limit, self._begun = None, False, None, 0

    def note(self, signal: str, value: Tensor | float) -> None:
        """Add a value of this step under a name: () on any device, or known on the host.

        Before `guard.step()`; it travels with the step's other values (`readback.WIDTH` at most).
        """
        if isinstance(value, Tensor):
            own = value.detach()
            self._scalars[signal] = own.clone() if own.is_cpu else own  # the caller may change it
        else:
            self._known[signal] = value

    def _keep(self, signal: str, value: Tensor | None) -> None:
        if value is not None:
            self._scalars[signal] = value

    def _keep_loss(self) -> None:
        taken = self.losses.take()
        if taken is None:
            return
        total, weight = taken
        plain = isinstance(weight, float) and weight == 1.0
        self._scalars[LOSS] = total if plain else total / weight
        if self._ranks > 1:
            self._scalars[LOSS_SUM] = total
            if isinstance(weight, Tensor):
                self._scalars[LOSS_WEIGHT] = weight
            else:
                self._known[LOSS_WEIGHT] = weight
