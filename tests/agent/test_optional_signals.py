"""What is measured only where asked for: equal to its value computed the plain way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from spikeguard.measure.norms import sampled_rows
from spikeguard.measure.signals import ENTROPY, UNSEEN
from spikeguard.measure.update_norms import SHARE
from spikeguard_protocol import OPTIONAL_SIGNALS

from .text_job import TextJob
from .wire import Wire, served


def entropy_of(tokens: Tensor) -> float:
    """Nats, in doubles."""
    count = torch.bincount(tokens.flatten()).double()
    part = count[count > 0] / count.sum()
    return float(-(part * part.log()).sum())


def test_tokens_sequences_and_updates_equal_those_computed_the_plain_way(tmp_path: Path) -> None:
    """Two micro-batches a step, so that whatever adds up over a step has to."""
    expected: dict[tuple[str, int], float] = {}
    with served(Wire()) as wire:
        job = TextJob(
            tmp_path,
            server=wire.url,
            micro_batches=2,
            slow_signals_every=5,
            flight_recorder=0,
            dtype=torch.bfloat16,
        )
        told: list[Tensor] = []
        show = job.guard.sequence_losses

        def noted(losses: Tensor) -> Tensor:
            told.append(losses.detach())
            return show(losses)

        job.guard.sequence_losses = noted  # type: ignore[method-assign]
        rows = dict(sampled_rows(list(job.model.named_parameters()), SHARE))
        sample = [p[: rows[n]] for n, p in job.model.named_parameters() if n in rows]
        known: set[int] = set()
        for step in range(1, 10):
            told.clear()
            before = [p.detach().clone() for p in sample]
            job.train_step()
            tokens = torch.cat([batch.tokens.flatten() for batch in job.seen[-1]])
            expected[ENTROPY, step] = entropy_of(tokens)
            new = [int(t) not in known for t in tokens]
            expected[UNSEEN, step] = sum(new) / len(new)
            known |= set(tokens.tolist())
            expected["loss_sequence_max", step] = max(float(t.double().mean(1).max()) for t in told)
            if step % 5 == 4:
                same = sum(int((a == b).sum()) for a, b in zip(sample, before, strict=True))
                expected["unchanged_parameters", step] = same / sum(a.numel() for a in sample)
            if step % 5 == 3:  # beside the norm of the second moment
                expected["adam_beta2", step] = 0.95
        job.guard.finish()
        assert job.guard.faults == {}
        columns = {name: wire.column(name) for name in OPTIONAL_SIGNALS}
    sent = {(name, step): v for name, column in columns.items() for (_, step), v in column.items()}
    assert sent == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert 0.0 < expected["unchanged_parameters", 9] < 1.0
    assert expected[UNSEEN, 1] == 1.0 > expected[UNSEEN, 2] > 0.0


def test_what_cannot_be_measured_is_counted_and_the_loop_goes_on(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = TextJob(tmp_path, server=wire.url)
        wrong: Any = "no tensor"
        assert job.guard.tokens(wrong) is wrong
        assert job.guard.sequence_losses(wrong) is wrong
        job.train_to(3)
        job.guard.finish()
        assert set(wire.column(ENTROPY)) == {(0, 1), (0, 2), (0, 3)}
    assert job.guard.faults == {"tokens": 1, "sequence_losses": 1}
