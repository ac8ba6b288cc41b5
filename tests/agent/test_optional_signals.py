"""What is measured only where asked for: equal to its value computed the plain way."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from spikeguard import AttachError, CheckpointDirectory, Settings, attach
from spikeguard.measure.norms import sampled_rows
from spikeguard.measure.signals.activations import MOST as MOST_LAYERS, Activations, layers_named
from spikeguard.measure.signals.attention import QUERIES, AttentionLogits
from spikeguard.measure.signals.tokens import ENTROPY, UNSEEN
from spikeguard.measure.update_norms import SHARE
from spikeguard_protocol import OPTIONAL_SIGNALS, LayerNorms, Samples

from .heard import parts_of
from .job import assert_same
from .text_job import TextJob
from .wire import Wire, served


def entropy_of(tokens: Tensor) -> float:
    """Nats, in doubles."""
    count = torch.bincount(tokens.flatten()).double()
    part = count[count > 0] / count.sum()
    return float(-(part * part.log()).sum())


def raised(error: Exception) -> None:
    raise error


def test_tokens_sequences_updates_and_activations_equal_those_computed_the_plain_way(
    tmp_path: Path,
) -> None:
    """Two micro-batches a step, so that whatever adds up over a step has to."""
    expected: dict[tuple[str, int], float] = {}
    outputs: dict[str, list[Tensor]] = {}
    layers: dict[str, float] = {}
    with served(Wire()) as wire:
        job = TextJob(
            tmp_path,
            server=wire.url,
            micro_batches=2,
            activation_layers=("blocks.?.attention", "norm"),
            unchanged_parameters=True,
            slow_signals_every=5,
            sampled_signals_every=4,
            flight_recorder=0,
            dtype=torch.bfloat16,
        )
        for name in ("blocks.0.attention", "blocks.1.attention", "norm"):
            job.model.get_submodule(name).register_forward_hook(
                lambda _m, _a, out, name=name: outputs.setdefault(name, []).append(out.detach())
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
            outputs.clear()
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
            if step % 4 == 0:
                layers = {n: float(torch.stack(o).double().norm()) for n, o in outputs.items()}
                expected["activation_norm_max", step] = max(layers.values())
                shown = [one.double() for of_layer in outputs.values() for one in of_layer]
                expected["activation_outlier_max", step] = max(
                    float(one.abs().max() / one.square().mean().sqrt()) for one in shown
                )
            if step % 5 == 3:  # beside the norm of the second moment
                expected["adam_beta2", step] = 0.95
        job.guard.finish()
        assert job.guard.faults == {}
        columns = {name: wire.column(name) for name in OPTIONAL_SIGNALS}
        details = wire.records(LayerNorms)
    sent = {(name, step): v for name, column in columns.items() for (_, step), v in column.items()}
    assert sent == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert 0.0 < expected["unchanged_parameters", 9] < 1.0
    assert expected[UNSEEN, 1] == 1.0 > expected[UNSEEN, 2] > 0.0
    assert [(d.step, d.signal) for d in details] == [(n, "activation_norm") for n in (4, 8)]
    assert details[-1].norms == pytest.approx(layers, rel=1e-3)


def test_pure_bf16_training_that_stops_moving_shows_as_unchanged(tmp_path: Path) -> None:
    """At a rate of 1e-7 most bf16 weights round back to what they were; fp32 ones do not."""
    share: dict[str, float] = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        with served(Wire()) as wire:
            job = TextJob(
                tmp_path / name, server=wire.url, dtype=dtype, lr=1e-7, unchanged_parameters=True
            )
            job.train_to(9)
            job.guard.finish()
            share[name] = wire.column("unchanged_parameters")[0, 9]
    assert share["bf16"] > 0.9
    assert share["fp32"] < 0.3  # rows of the embedding whose tokens did not occur


def test_known_tokens_go_back_in_a_rollback_and_through_a_checkpoint(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        for attempt in range(2):
            torch.manual_seed(1)
            model = nn.Linear(4, 4)
            guard = attach(
                model,
                torch.optim.AdamW(model.parameters()),
                run="text",
                server=wire.url,
                directory=tmp_path / "guard",
                checkpoints=CheckpointDirectory(tmp_path / "saved", every=0, background=False),
                settings=Settings(send_interval_s=0.02, flush_s=60.0, snapshot_every=0),
            )
            assert guard.resume() == attempt
            guard.tokens(torch.arange(8 * (1 + attempt)))
            guard.step()
            assert guard.checkpoint()
            kept = copy.deepcopy(parts_of(guard).collector.state_dict())
            guard.tokens(torch.arange(40, 44))
            guard.step()
            parts_of(guard).collector.load_state_dict(kept)
            guard.tokens(torch.arange(40, 44))
            guard.step()
            guard.finish()
    told = [wire.records(Samples, attempt) for attempt in wire.messages]
    shares = [[v for s in one for v in s.signals.get(UNSEEN, ())] for one in told]
    assert shares == [[1.0, 1.0, 1.0], [0.5, 1.0, 1.0]]


class Attending(nn.Module):
    """Attention that computes its scores itself, beside what a fused kernel would be given."""

    def __init__(self, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.heads, self.groups = heads, groups
        self.q, self.k = nn.Linear(16, 16), nn.Linear(16, 16 * groups // heads)
        self.guard: Any = None
        self.seen = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = self.q(x).view(b, t, self.heads, -1).transpose(1, 2)
        k = self.k(x).view(b, t, self.groups, -1).transpose(1, 2)
        every = k.repeat_interleave(self.heads // self.groups, dim=1)
        scores = q @ every.transpose(-1, -2) / math.sqrt(q.shape[-1])
        hidden = torch.ones(t, t, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
        if self.guard == "of":
            LOGITS.see_of(q, k)
        elif self.guard is not None:
            self.guard.attention_logit(scores)
            self.guard.attention_logit_of(q, k)
        self.seen = scores.detach()
        out: Tensor = scores.softmax(-1).sum(-1).mean() + q.mean() + k.mean()
        return out


LOGITS = AttentionLogits()


def test_the_largest_attention_logit_is_seen_in_the_scores_and_from_a_kernels_input() -> None:
    """Sequences no longer than `QUERIES` are seen whole, of longer ones evenly spread rows."""
    torch.manual_seed(2)
    model = Attending()
    model.guard = "of"
    LOGITS.on = True
    for length in (1, 5, QUERIES):
        model(8.0 * torch.randn(3, length, 16))
        assert LOGITS.take()["attention_logit_max"] == pytest.approx(float(model.seen.amax()))
    model(8.0 * torch.randn(3, 3 * QUERIES, 16))
    rows = model.seen[..., 2::3, :]
    assert LOGITS.take()["attention_logit_max"] == pytest.approx(float(rows.amax()))
    LOGITS.on = False
    model(torch.randn(3, 4, 16))
    assert LOGITS.take() == {}


def attend(
    folder: Path, wire: Wire, compiled: bool
) -> tuple[dict[tuple[int, int], float], list[Tensor]]:
    """Six steps of `Attending`; its largest logit in each, and its weights afterwards."""
    torch.manual_seed(2)
    model = Attending()
    settings = Settings(
        send_interval_s=0.02,
        flush_s=60.0,
        sampled_signals_every=3,
        activation_layers=("q", "k"),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(
        model, optimizer, run="text", server=wire.url, directory=folder, settings=settings
    )
    model.guard = guard
    forward = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    largest = {}
    for step in range(1, 7):
        guard.loss(forward(torch.randn(2, 6, 16))).backward()
        largest[0, step] = float(model.seen.amax())
        optimizer.step()
        optimizer.zero_grad()
        guard.step()
    guard.finish()
    assert guard.faults == {}
    return largest, [p.detach() for p in model.parameters()]


def test_a_compiled_model_shows_the_same_and_trains_to_the_same_bits(tmp_path: Path) -> None:
    """Hooks and calls are traced into one graph without a break (`fullgraph`)."""
    told = []
    for compiled in (False, True):
        with served(Wire()) as wire:
            weights = attend(tmp_path / str(compiled), wire, compiled)[1]
            details = {d.step: dict(d.norms) for d in wire.records(LayerNorms)}
            told.append((weights, details, wire.column("attention_logit_max")))
    assert list(told[0][1]) == [3, 6]
    assert all(norms.keys() == {"q", "k"} for norms in told[0][1].values())
    assert_same(told[0], told[1])


def test_a_layer_that_is_computed_anew_in_the_backward_pass_counts_once() -> None:
    layer, activations = nn.Linear(4, 4), Activations(raised)
    activations.watch({"layer": layer})
    activations.on = True
    x = torch.randn(3, 4, requires_grad=True)
    for reentrant in (False, True):
        checkpoint(layer, x, use_reentrant=reentrant).sum().backward()
        assert activations.take()["layer"] == pytest.approx(float(layer(x).detach().norm()))
        activations.take()


def test_evaluation_between_two_steps_is_not_counted() -> None:
    layer, activations = nn.Linear(4, 4).eval(), Activations(raised)
    handles = activations.watch({"layer": layer})
    activations.on = True
    layer(torch.randn(2, 4))
    assert activations.take() == {}
    layer.train()
    layer(torch.randn(2, 4))
    assert activations.take().keys() == {"layer"}
    handles[0].remove()
    layer(torch.randn(2, 4))
    assert activations.take() == {}


def test_at_the_end_the_hooks_are_gone_and_nothing_is_taken_any_more(tmp_path: Path) -> None:
    job = TextJob(tmp_path, activation_layers=("norm",))
    assert job.model.norm._forward_hooks
    job.train_to(1)
    job.guard.finish()
    assert not job.model.norm._forward_hooks
    job.guard.tokens(torch.arange(4))
    job.guard.attention_logit(torch.ones(2))
    assert job.guard._optional.tokens._shown == []


def test_what_cannot_be_measured_is_counted_and_the_loop_goes_on(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = TextJob(tmp_path, server=wire.url, sampled_signals_every=1)
        wrong: Any = "no tensor"
        assert job.guard.tokens(wrong) is wrong
        assert job.guard.sequence_losses(wrong) is wrong
        job.guard.attention_logit(wrong)
        job.guard.attention_logit_of(wrong, wrong)
        job.guard.attention_logit_of(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 5))
        job.train_to(3)
        job.guard.finish()
        assert set(wire.column(ENTROPY)) == {(0, 1), (0, 2), (0, 3)}
    assert job.guard.faults == {"tokens": 1, "sequence_losses": 1, "attention_logit": 3}


def test_a_layer_that_is_not_there_is_refused_before_anything_began(tmp_path: Path) -> None:
    with pytest.raises(AttachError, match=r"has 'block.0', which names no .* like blocks.0") as e:
        TextJob(tmp_path / "guard", activation_layers=("block.0",))
    assert e.value.argument == "settings"
    assert not (tmp_path / "guard").exists()
    model = nn.Sequential(nn.Sequential(nn.Identity(), nn.Identity()))
    assert layers_named(dict(model.named_modules()), ("*", "0.?")).keys() == {
        "0",
        "0.0",
        "0.1",
    }
    many = nn.Sequential(*(nn.Identity() for _ in range(MOST_LAYERS + 1)))
    with pytest.raises(AttachError, match=f"at most {MOST_LAYERS} are watched"):
        layers_named(dict(many.named_modules()), ("*",))
