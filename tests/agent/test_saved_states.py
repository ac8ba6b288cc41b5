"""Snapshots and checkpoints: bounded, protected while needed, whole or not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikeguard
import spikeguard.state.dcp_files
from spikeguard import (
    AttachError,
    CheckpointDirectory,
    Settings,
    UserCheckpoints,
    attach,
    by_position,
)
from spikeguard_protocol import (
    BatchRange,
    Medium,
    Rollback,
    TargetDeleted,
    TargetSaved,
)

from .job import FAST, Job, assert_same, order, target_at
from .test_exactness import Without
from .wire import Wire, await_that, served


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        directory = CheckpointDirectory(
            tmp_path / "checkpoints", every=10, keep=2, healthy_after=0, background=False
        )
        job = Job(tmp_path, checkpoints=directory, server=wire.url).train_to(45)
        job.guard.finish()
        saved = [r.name for r in wire.records(TargetSaved) if r.medium is Medium.DISK]
        gone = [r.name for r in wire.records(TargetDeleted) if r.name.startswith("checkpoint")]
    assert [t.step for t in directory.targets()] == [30, 40]
    assert len(saved) == 4
    assert gone == saved[:2]


def through_the_job(
    job_of: list[Job], path: Path, broken: list[str]
) -> tuple[UserCheckpoints, list[Path]]:
    """A job's own functions: what they are asked fails while `broken` says so."""
    asked: list[Path] = []

    def save(folder: Path) -> None:
        if "save" in broken:
            raise OSError("the job's own disk is full")
        model, optimizer = job_of[0].model.state_dict(), job_of[0].optimizer.state_dict()
        torch.save({"model": model, "optimizer": optimizer}, folder / "mine.pt")

    def load(folder: Path) -> None:
        asked.append(folder)
        saved = torch.load(folder / "mine.pt")
        job_of[0].model.load_state_dict(saved["model"])
        if "load" in broken:
            raise OSError("the file is damaged behind the model")
        job_of[0].optimizer.load_state_dict(saved["optimizer"])

    return UserCheckpoints(path, save, load, every=25), asked


def test_the_jobs_own_functions_save_and_load_model_and_optimizer(tmp_path: Path) -> None:
    """Bit for bit after a rollback with a skip and after a restart; a failed save is none."""
    job_of: list[Job] = []
    broken: list[str] = []
    kept, asked = through_the_job(job_of, tmp_path / "checkpoints", broken)
    job_of.append(job := Job(tmp_path, checkpoints=kept))
    job.train_to(30)
    order(job, Rollback(target_at(job, 25, Medium.DISK), 25, BatchRange(27, 29)))
    job.train_step()
    assert job.guard.steps == 25
    broken.append("save")
    job.train_to(52)
    assert job.guard.faults == {"checkpoint": 1}
    job.guard.finish()
    never = Job(loader=Without([(27, 29)])).train_to(52)
    never.guard.finish()
    assert_same(job.everything(), never.everything())
    job_of[0] = again = Job(tmp_path, checkpoints=kept)
    assert again.guard.resume() == 25
    again.train_to(52)
    again.guard.finish()
    assert_same(again.everything(), never.everything())
    assert [folder.name for folder in asked] == [kept.targets()[0].name] * 2


def test_a_checkpoint_is_written_while_the_loop_trains_on(tmp_path: Path) -> None:
    """It holds the state of its own step, and is told of once it is whole."""
    with served(Wire()) as wire:
        directory = CheckpointDirectory(tmp_path / "checkpoints", every=20)
        job = Job(tmp_path, checkpoints=directory, server=wire.url).train_to(20)
        expected = job.everything()
        job.train_to(39)
        job.guard.finish()
        told = [r.step for r in wire.records(TargetSaved) if r.medium is Medium.DISK]
    assert told == [t.step for t in directory.targets()] == [20]
    again = Job(tmp_path, checkpoints=directory)
    assert again.guard.resume() == 20
    assert_same(again.everything(), expected)
    again.guard.finish()


def test_protection_comes_from_the_server(tmp_path: Path) -> None:
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url).train_to(10)
        name = await_that(lambda: next((t.name for t in wire.records(TargetSaved)), None))
        wire.protected = (name,)
        await_that(lambda: job.guard.state().protected)
        job.train_to(90)
        held = job.guard.state().snapshots or ()
        assert [t.step for t in held] == [10, 50, 60, 70, 80, 90]
        job.guard.finish()


@pytest.mark.parametrize("other", [3, 7])
def test_checkpoints_of_another_format_keep_a_run_from_beginning_anew(
    tmp_path: Path, other: int
) -> None:
    job = Job(tmp_path).train_to(26)
    job.guard.finish()
    (folder,) = (tmp_path / "checkpoints").iterdir()
    manifest = folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 6', f'"format": {other}'))
    again = Job(tmp_path)
    with pytest.raises(spikeguard.ResumeError, match=f"empty folder.*has format {other} "):
        again.guard.resume()
    again.guard.finish()


def test_a_checkpoint_that_another_attempt_is_writing_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "checkpoint-00000050-0f3a9c21.0"
    folder.mkdir(parents=True)
    (folder / "__0_0.distcp").write_bytes(b"half of it")
    Job(tmp_path).guard.finish()
    assert (folder / "__0_0.distcp").exists()


class Scaled(nn.Linear):
    """Keeps a history beside its tensors, as Transformer Engine's layers do: bytes in a tensor."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.history: list[float] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.history.append(float(batch.detach().abs().max()))
        return super().forward(batch)

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.history)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.history = state.tolist()


@pytest.mark.parametrize("splits", [False, True])
def test_what_a_module_keeps_beside_its_tensors_goes_back_with_them(
    splits: bool, tmp_path: Path
) -> None:
    """Also where the model's state splits weights; and though it has grown since."""
    torch.manual_seed(3)
    layer = Scaled()
    model = nn.Sequential(layer, Fused() if splits else nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    settings = Settings(snapshot_every=4)
    guard = attach(model, optimizer, run="test", directory=tmp_path, settings=settings)
    trail = []
    for item in guard.batches(by_position(lambda n: torch.full((2, 4), float(n)), length=9)):
        guard.loss(model(item).square().mean()).backward()
        optimizer.step()
        if guard.steps == 6 and not guard.state().results:
            order(guard, Rollback(target_at(guard, 4, Medium.MEMORY), 4))
        guard.step()
        trail.append((guard.steps, list(layer.history)))
    assert trail[6] == (4, [0.0, 1.0, 2.0, 3.0])
    assert trail[-1][1][:5] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert guard.faults == {}
    guard.finish()


class OneWay(Scaled):
    """Shows what it keeps and takes none of it."""

    set_extra_state = nn.Module.set_extra_state


def test_a_module_that_takes_nothing_back_is_known_at_attach(tmp_path: Path) -> None:
    """And no snapshot is taken that nobody could restore."""
    model = nn.Sequential(OneWay())
    optimizer = torch.optim.AdamW(model.parameters())
    kept = CheckpointDirectory(tmp_path / "kept")
    with pytest.raises(AttachError, match=r"OneWay has no set_extra_state\(\) \(0._extra_state\)"):
        attach(model, optimizer, run="test", checkpoints=kept)
    guard = attach(model, optimizer, run="test", directory=tmp_path)
    assert guard.state().snapshots is None
    guard.finish()


class KeyedByTensors(torch.optim.AdamW):
    """As some Lookahead: slow weights, by the parameter that they belong to."""

    def state_dict(self) -> dict[str, Any]:
        slow = {p: p.detach().clone() for group in self.param_groups for p in group["params"]}
        return {**super().state_dict(), "slow": slow}


def test_a_state_by_parameters_that_no_restart_has_is_refused_at_attach(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    kept = CheckpointDirectory(tmp_path / "kept")
    with pytest.raises(AttachError, match="has tensors as keys"):
        attach(model, KeyedByTensors(model.parameters()), run="test", checkpoints=kept)


class HighMoments(torch.optim.Optimizer):
    """Moments in fp32 of weights in bf16; loads by torch's method, which casts them."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            mean = state.setdefault("mean", torch.zeros_like(parameter, dtype=torch.float32))
            mean.lerp_(parameter.grad.float(), 0.1)
            parameter.sub_(mean.to(torch.bfloat16), alpha=0.1)


def test_moments_of_another_type_than_their_weights_are_restored_as_they_were(
    tmp_path: Path,
) -> None:
    def means(steps: int) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(4, 4).bfloat16()
        optimizer = HighMoments(model.parameters())
        saved = CheckpointDirectory(tmp_path / "saved", every=3, background=False)
        guard = attach(model, optimizer, run="test", settings=FAST, checkpoints=saved)
        for _ in range(guard.resume(), steps):
            guard.loss(model(torch.ones(2, 4, dtype=torch.bfloat16)).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            guard.step()
        guard.finish()
        return [state["mean"].clone() for state in optimizer.state.values()]

    before = means(3)
    assert_same(means(3), before)


class Fused(nn.Linear):
    """As torchtitan's fused projection: its state names the halves, which are copies."""

    def __init__(self) -> None:
        super().__init__(4, 4, bias=False)
        hook: Any = self.register_state_dict_post_hook
        hook(Fused.split)

    def split(self, state: dict[str, Any], prefix: str, _: Any) -> None:
        whole = state.pop(f"{prefix}weight")
        state[f"{prefix}first"], state[f"{prefix}last"] = whole[:2].clone(), whole[2:].clone()


def test_a_weight_that_the_models_state_splits_is_put_back(tmp_path: Path) -> None:
    def start() -> tuple[Any, nn.Module, Any]:
        torch.manual_seed(3)
        model = nn.Sequential(Fused(), nn.BatchNorm1d(4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        checkpoints = CheckpointDirectory(tmp_path / "ck", every=4, background=False)
        return attach(model, optimizer, run="test", checkpoints=checkpoints), model, optimizer

    guard, model, optimizer = start()
    for step, item in enumerate(guard.batches(torch.randn(6, 4, 4)), 1):
        guard.loss(model(item).square().mean()).backward()
        optimizer.step()
        guard.step()
        if step == 4:
            kept = [p.detach().clone() for p in (*model.parameters(), *model.buffers())]
    guard.finish()
    again, model, _ = start()
    assert again.resume() == 4
    assert all(map(torch.equal, kept, (*model.parameters(), *model.buffers())))
    again.finish()
