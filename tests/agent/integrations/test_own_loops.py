"""Loops that stay the user's: Accelerate, a compiled model, an optimizer's closure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.utils.data import DataLoader, DistributedSampler

from spikeguard import CheckpointDirectory, attach
from spikeguard_protocol import Answer, Medium, ResultState, Rollback, Verb
from tests.agent.integrations.lazy import LazyModule
from tests.agent.job import FAST, order, result, target_at
from tests.agent.wire import Wire, await_checkpoint, served

sys.path.extend(
    str(Path(__file__).parents[3] / "examples" / name)
    for name in ("accelerate", "nanogpt", "plain_pytorch")
)
import nanogpt_loop
import plain_pytorch

if TYPE_CHECKING:
    import accelerate as framework
    import accelerate_loop
    import lightning

    from spikeguard.integrations import accelerate
else:
    framework, accelerate_loop = map(LazyModule, ("accelerate", "accelerate_loop"))
    lightning = LazyModule("lightning")
    accelerate = LazyModule("spikeguard.integrations.accelerate")


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread, and a step under Accelerate waits for the disk: 30 of them take a second."""
    step = accelerate.AcceleratedGuard.step

    def waiting(guard: Any) -> None:
        await_checkpoint(guard.guard)
        step(guard)

    monkeypatch.setattr(accelerate.AcceleratedGuard, "step", waiting)
    torch.set_num_threads(1)
    monkeypatch.setenv("SPIKEGUARD_SEND_INTERVAL", "0.02")


def test_the_accelerate_example_counts_steps_and_clips_where_a_step_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not micro-batches: loss and norm are those of the whole step."""
    plain = accelerate.attach
    zclip = lambda *given, **named: plain(*given, clip="zclip", **named)  # noqa: E731
    monkeypatch.setattr("accelerate_loop.attach", zclip)
    with served(Wire()) as wire:
        monkeypatch.setenv("SPIKEGUARD_SERVER", wire.url)
        guard = accelerate_loop.train(tmp_path)
        losses, norms = wire.column("loss"), wire.column("grad_norm")
        means = wire.column("grad_norm_mean")
    assert (guard.steps, guard.position, guard.faults) == (30, 30, {})
    assert {Verb.ROLLBACK, Verb.SKIP_BATCHES, Verb.STOP} <= set(guard.capabilities)
    assert [len(column) for column in (losses, norms, means)] == [30] * 3
    assert 3.5 < losses[0, 1] < 5.0  # log 64 = 4.2: a mean, not a sum over micro-batches


def test_a_compiled_run_goes_on_where_it_stood_and_checkpoints_under_its_own_names(
    tmp_path: Path,
) -> None:
    before = plain_pytorch.train(tmp_path, steps=40, backend="aot_eager")
    saved = before.state().checkpoints[0]  # 20 where that was still written at 40
    (kept,) = tmp_path.rglob(saved.name)
    stored = FileSystemReader(kept).read_metadata().state_dict_metadata
    names = {name.removeprefix("model.") for name in stored if name.startswith("model.")}
    assert names == set(plain_pytorch.make_model().state_dict())
    guard = plain_pytorch.train(tmp_path, steps=60, backend="aot_eager")
    parent = guard.state().parent
    assert parent is not None
    assert (parent.step, guard.steps) == (saved.step, 60)
    assert saved.step in (20, 40)
    assert guard.faults.keys() <= {"checkpoint"}  # left out while the one before is being written


def test_a_loop_of_nanogpts_shape_that_is_killed_trains_on_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it draws at random, and holds a batch that it fetched ahead."""
    model = nanogpt_loop.train(tmp_path / "whole")._job.parts[0]
    rate = nanogpt_loop.rate

    def killed(step: int, steps: int) -> float:
        if step == 45:
            raise KeyboardInterrupt
        return rate(step, steps)

    monkeypatch.setattr(nanogpt_loop, "rate", killed)
    with pytest.raises(KeyboardInterrupt):
        nanogpt_loop.train(tmp_path / "killed")
    monkeypatch.setattr(nanogpt_loop, "rate", rate)
    again = nanogpt_loop.train(tmp_path / "killed")
    assert again.steps == 60
    assert again.state().parent is not None  # it did not begin anew
    for name, expected in model.state_dict().items():
        assert torch.equal(again._job.parts[0].state_dict()[name], expected), name


def test_an_update_from_a_closure_is_judged_after_the_closure(tmp_path: Path) -> None:
    """Gradients exist only once it has run: judged before it, the NaN would pass."""
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
    with served(Wire()) as wire:
        guard = attach(
            model, optimizer, run="test", directory=tmp_path, server=wire.url, settings=FAST
        )

        def closure() -> Any:
            optimizer.zero_grad()
            loss = guard.loss(model(torch.ones(2, 4)).square().mean() * factor)
            loss.backward()
            return loss

        for factor in (1.0, 1.0, float("nan"), 1.0):  # noqa: B007  # the closure reads it
            optimizer.step(closure)
            guard.step()
        guard.finish()
        assert wire.column("update_dropped") == {(0, 1): 0, (0, 2): 0, (0, 3): 1, (0, 4): 0}
    assert guard.faults == {}
    assert torch.isfinite(model.weight).all()


def test_a_loader_of_fabrics_is_read_again_in_the_order_of_its_pass(tmp_path: Path) -> None:
    """It sets its sampler by a count of its own; the run goes back within the second pass."""
    data: Any = torch.arange(48.0).view(48, 1)
    plain = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, 0, seed=7))
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    loader = fabric.setup_dataloaders(plain, use_distributed_sampler=False)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    checkpoints = CheckpointDirectory(tmp_path, every=2, background=False)
    guard = attach(model, optimizer, run="test", settings=FAST, checkpoints=checkpoints)
    seen: dict[int, list[list[float]]] = {}
    for _ in guard.epochs(2):
        for batch in guard.batches(loader):
            seen.setdefault(guard.position, []).append(batch.flatten().tolist())
            guard.loss(model(batch).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            if guard.position == 9 and not guard.state().results:
                order(guard, Rollback(target_at(guard, 8, Medium.DISK), 8))
            guard.step()
    guard.finish()
    assert len(seen[8]) == 2
    assert {place: [read[0]] * len(read) for place, read in seen.items()} == seen


@pytest.mark.parametrize("kind", ["fabric", "accelerate"])
def test_a_loader_that_counts_its_passes_goes_on_in_the_one_that_it_was_killed_in(
    tmp_path: Path, kind: str
) -> None:
    """In a loop that counts none; six steps a pass, killed in the second and in the third."""
    data: Any = torch.arange(48.0).view(48, 1)

    def attached(folder: Path) -> tuple[Any, Any, Any, Any]:
        torch.manual_seed(0)  # from which Accelerate's sampler takes its seed
        given: dict[str, Any] = {"run": "test", "settings": FAST}
        given["checkpoints"] = CheckpointDirectory(folder, every=2, background=False)
        model: Any = nn.Linear(1, 1)
        optimizer: Any = torch.optim.AdamW(model.parameters(), fused=True)
        if kind == "fabric":
            plain = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, 2, 0, seed=7))
            fabric = lightning.Fabric(accelerator="cpu", devices=1)
            loader = fabric.setup_dataloaders(plain, use_distributed_sampler=False)
            return attach(model, optimizer, **given), model, optimizer, loader
        seeded = framework.DataLoaderConfiguration(use_seedable_sampler=True)
        accelerator = framework.Accelerator(cpu=True, dataloader_config=seeded)
        prepared = accelerator.prepare(
            model, optimizer, DataLoader(data, batch_size=8, shuffle=True)
        )
        return accelerate.attach(accelerator, *prepared[:2], **given), *prepared

    def train(folder: Path, stop: int) -> dict[int, list[float]]:
        guard, model, optimizer, loader = attached(folder)
        guard.resume()
        seen: dict[int, list[float]] = {}
        for _ in range(stop):  # more than enough: no pass may give nothing for ever
            for batch in guard.batches(loader):
                seen[guard.steps] = batch.flatten().tolist()
                guard.loss(model(batch).mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
                guard.step()
                if guard.steps == stop:
                    guard.finish()
                    return seen
        raise AssertionError(f"no data after step {guard.steps}")

    whole, again = train(tmp_path / "whole", 18), dict[int, list[float]]()
    for stop in (9, 15, 18):
        again |= train(tmp_path / "again", stop)
    assert again == whole


def test_what_lightning_fabric_wraps_is_watched_and_kept_as_if_it_were_not(tmp_path: Path) -> None:
    fabric = lightning.Fabric(accelerator="cpu", devices=1)
    inner = nn.Linear(4, 4)
    plain = nn.Sequential(inner, nn.Linear(4, 2))
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), fused=True))
    folder = CheckpointDirectory(tmp_path / "kept", every=2, background=False)
    guard = attach(model, optimizer, run="test", checkpoints=folder, settings=FAST)
    rows = {row.name: (row.answer.value, row.cost) for row in guard.state().abilities}
    assert "restore_all" not in rows
    assert rows["skip_update"] == ("yes", "")  # by found_inf, as with the optimizer inside
    for batch in guard.batches([torch.ones(2, 4), torch.full((2, 4), torch.nan)]):
        before = inner.weight.detach().clone()
        fabric.backward(guard.loss(model(batch).square().mean()))
        optimizer.step()
        optimizer.zero_grad()
        guard.step()
    guard.finish()
    assert torch.equal(inner.weight, before)
    (kept,) = (tmp_path / "kept").glob("checkpoint-*")
    stored = FileSystemReader(kept).read_metadata().state_dict_metadata
    names = {name.removeprefix("model.") for name in stored if name.startswith("model.")}
    assert names == set(plain.state_dict())


def test_a_rollback_under_accelerate_goes_back_into_an_earlier_pass(tmp_path: Path) -> None:
    accelerator, inner = framework.Accelerator(cpu=True), nn.Linear(4, 4)
    data = torch.utils.data.TensorDataset(torch.randn(15, 4))
    loader = torch.utils.data.DataLoader(data, shuffle=True)
    model, optimizer, prepared = accelerator.prepare(
        inner, torch.optim.AdamW(inner.parameters()), loader
    )
    guard = accelerate.attach(
        accelerator, model, optimizer, run="test", directory=tmp_path, settings=FAST
    )
    command = ""
    for _ in guard.epochs(2):
        for (batch,) in guard.batches(prepared):
            accelerator.backward(guard.loss(model(batch).square().mean()))
            optimizer.step()
            optimizer.zero_grad()
            if guard.steps == 19 and not command:
                command = order(guard, Rollback(target_at(guard, 10, Medium.MEMORY), 10))
            guard.step()
    assert result(guard, command).state is ResultState.APPLIED
    guard.finish()


def test_a_loop_that_accumulates_by_hand_under_accelerate_says_how_many(tmp_path: Path) -> None:
    accelerator, inner = framework.Accelerator(cpu=True), nn.Linear(4, 4)
    rows: Any = torch.randn(96, 4)
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=2)
    model, optimizer, loader = accelerator.prepare(
        inner, torch.optim.SGD(inner.parameters(), lr=0.1), loader
    )
    guard = accelerate.attach(
        accelerator,
        model,
        optimizer,
        run="test",
        settings=FAST,
        directory=tmp_path,
        micro_batches=3,
    )
    for number, batch in enumerate(guard.batches(loader), 1):
        accelerator.backward(guard.loss(model(batch).square().mean()) / 3)
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
    assert (guard.steps, guard.position) == (16, 16)
    assert {row.answer for row in guard.state().abilities} == {Answer.YES}
    guard.finish()
