"""Reported signals are those that torch and the loop's own arithmetic give."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spikeguard import Settings, attach
from spikeguard.commands.orders import ATTENTIVE_S, Inbox
from spikeguard.measure.norms import sampled_rows
from spikeguard.measure.signals import ENTROPY, UNSEEN
from spikeguard.measure.update_norms import SHARE
from spikeguard_protocol import OPTIONAL_SIGNALS, Ack, LayerNorms, Samples

from .job import FAST, Job
from .text_job import TextJob
from .wire import Wire, await_that, served


def l2(tensors: list[torch.Tensor]) -> float:
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


MEASURED_AT = {"param_norm": 12, "update_norm": 15, "adam_v_norm": 17}  # of 10 to 19, by default


def test_norms_equal_those_computed_the_plain_way(tmp_path: Path) -> None:
    seen: dict[tuple[str, int], float] = {}
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url, micro_batches=2)
        clip = job.guard.clip_grad_norm_

        def noted(max_norm: float | None) -> torch.Tensor:
            grads = [p.grad for p in job.model.parameters() if p.grad is not None]
            seen["grad_norm", job.guard.steps + 1] = l2(grads)
            return clip(max_norm)

        job.guard.clip_grad_norm_ = noted  # type: ignore[method-assign]
        job.train_to(10)
        for step in range(11, 20):
            before = [p.detach().clone() for p in job.model.parameters()]
            rate = job.optimizer.param_groups[0]["lr"]
            job.train_step()
            after = [p.detach() for p in job.model.parameters()]
            moved = l2([a - b for a, b in zip(after, before, strict=True)])
            seen |= {
                ("lr", step): rate,
                ("param_norm", step): l2(after),
                ("adam_v_norm", step): l2([s["exp_avg_sq"] for s in job.optimizer.state.values()]),
                ("update_norm", step): moved / rate,
            }
        job.guard.finish()
    for (signal, step), value in seen.items():
        if step == MEASURED_AT.get(signal, step):
            assert wire.column(signal)[0, step] == pytest.approx(value, rel=1e-4), signal
    assert len(wire.column("update_norm_sampled")) == 19


def test_rates_of_other_groups_are_told_where_they_are_not_the_first_ones(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        layers = [nn.Linear(4, 4) for _ in range(4)]
        model = nn.Sequential(*layers)
        groups: list[dict[str, Any]] = [{"params": each.parameters()} for each in layers[:3]]
        groups[2]["lr"] = torch.tensor(0.03)  # as with capturable
        adam = torch.optim.AdamW(groups, lr=0.01)
        sgd = torch.optim.SGD(layers[3].parameters(), lr=0.5)
        guard = attach(
            model, [adam, sgd], run="test", server=wire.url, directory=tmp_path, settings=FAST
        )
        for step in range(1, 4):
            adam.param_groups[1]["lr"] = 0.01 if step < 3 else 0.02
            guard.loss(model(torch.ones(2, 4)).square().mean()).backward()
            adam.step()
            sgd.step()
            guard.step()
        guard.finish()
        assert guard.faults == {}
    assert wire.column("lr") == dict.fromkeys([(0, 1), (0, 2), (0, 3)], 0.01)
    assert wire.column("lr_group_1") == {(0, 3): 0.02}
    assert list(wire.column("lr_group_2").values()) == pytest.approx([0.03] * 3)
    assert wire.column("lr_group_3") == dict.fromkeys([(0, 1), (0, 2), (0, 3)], 0.5)


def test_the_loss_of_a_step_is_the_weighted_mean_of_its_micro_batches(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        model = nn.Linear(2, 2)
        guard = attach(
            model,
            torch.optim.AdamW(model.parameters()),
            run="test",
            server=wire.url,
            directory=tmp_path,
            settings=FAST,
        )
        guard.loss(torch.tensor(1.0), weight=300)
        guard.loss(torch.tensor(4.0), weight=torch.tensor(100))
        guard.step()
        guard.loss(torch.tensor(math.inf))
        guard.step()
        await_that(lambda: (0, 2) in wire.column("loss"))
        guard.finish()
    assert wire.column("loss") == {(0, 1): 1.75, (0, 2): math.inf}


def test_a_loss_may_be_a_number_and_what_is_none_is_named_with_the_remedy(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job: Any = Job(tmp_path, server=wire.url)
        for loss in (1.5, np.float32(2.5), torch.tensor([3.5]), 4):
            assert job.guard.loss(loss) is loss
            job.guard.step()
        assert job.guard.faults == {}
        job.guard.loss(torch.ones(4, 2))
        assert "a loss of shape (4, 2): give its mean" in str(job.guard.state().newest_fault)
        job.guard.loss({"loss": 1.0})
        assert "not 'dict'" in str(job.guard.state().newest_fault)
        job.guard.finish()
    assert list(wire.column("loss").values()) == [1.5, 2.5, 3.5, 4.0]


def test_slow_signals_come_every_step_while_the_server_is_attentive(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        wire.attentive = True
        job = Job(tmp_path, server=wire.url).train_to(2)
        await_that(lambda: job.guard.state().attentive)
        job.train_to(9)
        job.guard.finish()
    assert {(0, step) for step in range(4, 10)} <= set(wire.column("update_norm"))
    assert {(0, step) for step in range(4, 10)} <= set(wire.column("param_norm"))


def test_a_server_that_is_gone_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention ends with the server's silence, and comes back with its next word."""
    box = Inbox()
    box.hear(Ack(1, attentive=True))
    assert box.attentive
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + ATTENTIVE_S + 1.0)
    assert not box.attentive
    box.hear(Ack(2, attentive=True))
    assert box.attentive


def test_gradient_norms_by_parameter_come_while_the_server_watches(tmp_path: Path) -> None:
    seen: dict[str, float] = {}
    with served(Wire()) as wire:
        wire.attentive = True
        job = Job(tmp_path, server=wire.url, settings=replace(FAST, slow_signals_every=1))
        clip = job.guard.clip_grad_norm_

        def noted(max_norm: float | None) -> torch.Tensor:
            named = job.model.named_parameters()
            seen.update({name: l2([p.grad]) for name, p in named if p.grad is not None})
            return clip(max_norm)

        job.guard.clip_grad_norm_ = noted  # type: ignore[method-assign]
        job.train_to(9)
        await_that(lambda: job.guard.state().attentive)
        job.train_to(11)  # taken up at the end of step 10
        job.guard.finish()
        details = wire.records(LayerNorms)
        whole = wire.column("grad_norm")[0, 11]
    assert [(d.segment, d.step, d.signal) for d in details] == [
        (0, step, "grad_norm") for step in range(1, 12)
    ]
    assert details[-1].norms == pytest.approx(seen, rel=1e-5)
    assert whole == pytest.approx(math.sqrt(sum(n * n for n in seen.values())), rel=1e-5)


def test_a_step_that_keeps_layers_clips_by_the_same_bits_as_any_other(tmp_path: Path) -> None:
    """Else a run would end elsewhere for being watched, or for a batch less."""

    def weights(name: str, **settings: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(2)
        layers = [nn.Linear(24, 24, dtype=d) for d in (torch.bfloat16, torch.float32) * 4]
        optimizer = torch.optim.AdamW([p for each in layers for p in each.parameters()], lr=1e-2)
        model = nn.ModuleList(layers)
        chosen = Settings(**settings)  # type: ignore[arg-type]
        guard = attach(model, optimizer, run="r", directory=tmp_path / name, settings=chosen)
        for step in range(24):
            made = torch.Generator().manual_seed(step)
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=made).to(p.dtype)
            guard.clip_grad_norm_(0.1)
            optimizer.step()
            guard.step()
        guard.finish()
        return {name: p.detach().clone() for name, p in model.named_parameters()}

    plain = weights("plain", flight_recorder=0)
    for name, every in (("each", 1), ("some", 3)):
        kept = weights(name, slow_signals_every=every)
        assert all(torch.equal(plain[n], kept[n]) for n in plain)


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


def test_what_the_loop_logs_arrives_with_the_step_that_it_was_logged_in(tmp_path: Path) -> None:
    """Numbers and tensors; what the loop changes afterwards does not change what was logged."""
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        running = torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True)
        for step in range(1, 6):
            job.guard.log({"router_entropy": 99.0})
            job.guard.log({"router_entropy": 1.0 / step, "scale": np.float64(step), "on": True})
            other: Any = {"count": np.int64(step)}  # of numpy: a number, and no float
            job.guard.log(other)
            if step % 2:
                job.guard.log({"share": running, "odd": math.nan})
            with torch.no_grad():
                running += 1.0
            job.train_step()
        job.guard.finish()
        assert job.guard.faults == {}
    assert wire.column("router_entropy") == {(0, n): 1.0 / n for n in range(1, 6)}
    assert wire.column("scale") == {(0, n): float(n) for n in range(1, 6)}
    assert wire.column("share") == {(0, 1): 0.5, (0, 3): 2.5, (0, 5): 4.5}
    assert wire.column("count") == wire.column("scale")
    assert set(wire.column("on").values()) == {1.0}
    assert [math.isnan(v) for v in wire.column("odd").values()] == [True] * 3
    assert len(wire.column("loss")) == 5


BAD: dict[str, tuple[Any, Any]] = {
    "a name with a space": ("router entropy", 1.0),
    "a name that is too long": ("a" * 65, 1.0),
    "a name that is none": (7, 1.0),
    "a signal of the agent's": ("loss", 1.0),
    "what the agent says of its ranks": ("replicas_apart", 1.0),
    "text": ("text", "1.0"),
    "nothing": ("nothing", None),
    "a vector": ("vector", torch.ones(3)),
    "a complex number": ("complex", torch.tensor(1j)),
    "a tensor without values": ("meta", torch.ones((), device="meta")),
}


@pytest.mark.parametrize("case", BAD)
def test_a_name_or_value_that_cannot_be_taken_is_told_once_and_harms_nothing(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name, value = BAD[case]
    caplog.set_level(logging.WARNING, "spikeguard")
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        for step in range(3):
            job.guard.log({name: value, "good": float(step)})
            job.train_step()
        job.guard.finish()
    assert job.guard.faults == {"log": 1}
    assert sum("guard.log" in line for line in caplog.messages) == 1
    assert list(wire.column("good").values()) == [0.0, 1.0, 2.0]
    assert max(wire.column("loss").values()) != 1.0
    known = {"good", "loss"} if name == "loss" else {"good"}
    assert not {str(name)} & {n for s in wire.records(Samples) for n in s.signals} - known


def test_no_more_than_sixteen_names_are_taken_and_a_log_that_is_no_table_is_a_fault(
    tmp_path: Path,
) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url)
        for _ in range(2):
            job.guard.log({f"expert_{n}": float(n) for n in range(18)})
            job.train_step()
        assert job.guard.faults == {"log": 2}  # each of the two names that are too many
        job.guard.log(3.0)  # type: ignore[arg-type]
        job.train_step()
        job.guard.finish()
    assert job.guard.faults == {"log": 3}
    names = {n for s in wire.records(Samples) for n in s.signals if n.startswith("expert_")}
    assert names == {f"expert_{n}" for n in range(16)}
