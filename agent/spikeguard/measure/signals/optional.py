"""The optional signals of one loop together: what it showed of a step's tokens and sequences.

Law: what is off costs a test of one attribute. A failure is counted where it happened and ends
with the step.
"""

from __future__ import annotations

from torch import Tensor

from spikeguard.measure.batch_ring import BatchRing
from spikeguard.measure.signals.tokens import TokenStatistics, WorstSequence
from spikeguard.ranks.model_parts import local


class OptionalSignals:
    """What is shown between two steps."""

    def __init__(self, kept_steps: int) -> None:
        """`kept_steps`: newest batches that are kept for an incident."""
        self.idle = True  # nothing was ever shown
        self._ended = False
        self.tokens, self._sequences = TokenStatistics(), WorstSequence()
        self.batches = BatchRing(kept_steps)

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

    def take(self) -> dict[str, Tensor]:
        """What the step showed, () each; then start anew."""
        return self.tokens.take() | self._sequences.take()

    def reset(self) -> None:
        """Forget what was shown since the last step."""
        self.tokens.forget()
        self.batches.forget()
        self._sequences.take()

    def end(self) -> None:
        """Look at nothing any more."""
        self._ended = self.idle = True
        self.reset()
