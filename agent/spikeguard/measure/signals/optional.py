"""The optional signals of one loop together: which are on, when they look, what a step showed.

Activations and attention logits are looked at in one step of `sampled_signals_every`, and at every
step while the server is attentive.
Law: what is off costs a test of one attribute. A failure is counted where it happened and ends
with the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from spikeguard.faults import Faults
from spikeguard.measure.batch_ring import BatchRing
from spikeguard.measure.signals.activations import Activations
from spikeguard.measure.signals.attention import AttentionLogits
from spikeguard.measure.signals.tokens import TokenStatistics, WorstSequence
from spikeguard.ranks.model_parts import local
from spikeguard.settings import Settings
from spikeguard_protocol import OptionalSignal

ACTIVATION_NORM_MAX = OptionalSignal.ACTIVATION_NORM_MAX.value
ACTIVATION_OUTLIER_MAX = OptionalSignal.ACTIVATION_OUTLIER_MAX.value


class OptionalSignals:
    """What is shown between two steps."""

    def __init__(self, settings: Settings, faults: Faults) -> None:
        self._settings, self._faults = settings, faults
        self.idle = True  # nothing was ever shown, and no layer is watched
        self._ended = False
        self.tokens, self._sequences = TokenStatistics(), WorstSequence()
        self.batches = BatchRing(settings.flight_recorder)
        self._attention = AttentionLogits()
        self._activations = Activations(lambda error: faults.note("activations", error))
        self.handles: list[Any] = []  # with remove()
        self._look(0, False)

    def watch(self, layers: Mapping[str, nn.Module]) -> None:
        """Hook what `layers_named` found."""
        self.handles += self._activations.watch(layers)
        self.idle = self.idle and not self.handles

    # ---- what the loop shows ---------------------------------------------------------------

    def show_tokens(self, ids: Tensor) -> None:
        """Token ids of one micro-batch."""
        if not self._ended:
            self.idle = False
            own = local(ids)
            self.tokens.show(own)
            self.batches.show_tokens(own)

    def show_sequences(self, losses: Tensor) -> None:
        """Losses of one micro-batch's sequences."""
        if not self._ended:
            self.idle = False
            own = local(losses)
            self._sequences.show(own)
            self.batches.show_losses(own)

    def show_scores(self, scores: Tensor) -> None:
        """Attention logits; called from the model, so a failure ends here."""
        self.idle = False
        try:
            self._attention.see(local(scores))
        except Exception as error:
            self._faults.note("attention_logit", error)

    def show_queries(
        self, queries: Tensor, keys: Tensor, scale: float | None, causal: bool
    ) -> None:
        """What attention logits are made of; the same."""
        self.idle = False
        try:
            self._attention.see_of(local(queries), local(keys), scale, causal)
        except Exception as error:
            self._faults.note("attention_logit", error)

    # ---- at the end of a step --------------------------------------------------------------

    @torch.no_grad()
    def finish_step(
        self, step: int, attentive: bool, scalars: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Add what `step` showed to its `scalars`; returns activation norms by layer."""
        try:
            scalars |= self.tokens.take() | self._sequences.take() | self._attention.take()
            norms = self._activations.take()
            if norms:
                scalars[ACTIVATION_NORM_MAX] = torch.stack(
                    [norm.to(next(iter(norms.values())).device) for norm in norms.values()]
                ).amax()
            if (outlier := self._activations.take_outlier()) is not None:
                scalars[ACTIVATION_OUTLIER_MAX] = outlier
            return norms
        finally:
            self._look(step, attentive)

    def reset(self) -> None:
        """Forget what was shown since the last step."""
        self.tokens.forget()
        self.batches.forget()
        self._sequences.take()
        self._attention.take()
        self._activations.take()
        self._activations.take_outlier()

    def end(self) -> None:
        """Look at nothing any more; the hooks are removed by who holds the handles."""
        self._ended = self.idle = True
        self._attention.on = self._activations.on = False
        self.reset()

    def _look(self, done: int, attentive: bool) -> None:
        every = self._settings.sampled_signals_every
        due = (attentive or (done + 1) % every == 0) and not self._ended
        self._activations.on = due
        self._attention.on = due
