"""Frameworks that own their loop: a rollback goes by restart, and leaves nothing of the spike."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

from spikeguard import AttachError, Mitigation, ResumeError, guard_of
from spikeguard.errors import EXIT_ROLL_BACK
from spikeguard_protocol import (
    Ack,
    AttemptStarted,
    BatchRange,
    CheckpointNow,
    CommandResult,
    Order,
    ResultState,
    Rollback,
    Samples,
    SegmentReason,
    SegmentStarted,
    Stop,
    TargetSaved,
    Verb,
)
from tests.agent.heard import hear, parts_of
from tests.agent.integrations.lazy import LazyModule
from tests.agent.wire import Wire, await_that, served

sys.path.extend(
    str(Path(__file__).parents[3] / "examples" / name) for name in ("hugging_face", "lightning")
)
if TYPE_CHECKING:
    import hugging_face_trainer as hf
    import lightning.pytorch as framework
    import lightning_trainer as pl
    import transformers

    from spikeguard.integrations import hugging_face, lightning
    from tests.agent.integrations import restart_callbacks as callbacks
else:
    hf, pl, framework, transformers = map(
        LazyModule,
        ("hugging_face_trainer", "lightning_trainer", "lightning.pytorch", "transformers"),
    )
    hugging_face = LazyModule("spikeguard.integrations.hugging_face")
    lightning = LazyModule("spikeguard.integrations.lightning")
    callbacks = LazyModule("tests.agent.integrations.restart_callbacks")

SKIP = BatchRange(13, 16)
COMMAND = "test#1.1"
INSIDE, BETWEEN = 112, 160  # rows: a rollback in the midst of a pass, or at its end
QUIET: dict[str, Any] = {"logger": False, "enable_checkpointing": False}


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setenv("SPIKEGUARD_RUN", "test")
    monkeypatch.setenv("SPIKEGUARD_SEND_INTERVAL", "0.02")


def deliver(guard: Any, action: Any) -> None:
    """As the sender does it."""
    hear(guard, Ack(1, (Order(COMMAND, guard.attempt, action, 60.0, None),)))


def target_at(guard: Any, step: int) -> str:
    found = guard.state().checkpoints
    return str(next(target.name for target in found if target.step == step))


# ---- the same story in both frameworks ---------------------------------------------------------


def hf_attempt(
    out: Path,
    at: int = 0,
    act: Callable[[Any], Any] | None = None,
    data: Callable[[Any], None] = lambda _: None,
    **arguments: Any,
) -> tuple[Any, dict[str, Tensor]]:
    """One start of the process; `act(guard)` is ordered after step `at`, and `data` changes what
    the trainer reads."""

    class Ordering(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if act is not None and state.global_step == at:
                deliver(watched.guard, act(watched.guard))

    trainer = hf.make_trainer(out)
    data(trainer)
    watched = hugging_face.watch(trainer, run="test", **arguments)
    trainer.add_callback(Ordering())
    trainer.train(resume_from_checkpoint=watched.checkpoint())
    return watched.guard, dict(trainer.model.state_dict())


def pl_attempt(
    out: Path,
    at: int = 0,
    act: Callable[[Any], Any] | None = None,
    data: Callable[[], Any] = lambda: pl.make_loader(640),
    **arguments: Any,
) -> tuple[Any, dict[str, Tensor]]:
    class Ordering(framework.Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if act is not None and trainer.global_step == at:
                deliver(watched.guard, act(watched.guard))

    loader = data()
    torch.manual_seed(0)
    watched = lightning.Watched(out / "checkpoints", every=10, run="test", **arguments)
    trainer, module = pl.make_trainer(watched, out), pl.NextToken()
    trainer.callbacks.append(Ordering())
    trainer.fit(module, watched.loader(loader), ckpt_path=watched.checkpoint())
    return watched.guard, dict(module.state_dict())


ATTEMPTS = {"hugging_face": hf_attempt, "lightning": pl_attempt}
each = pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=list(ATTEMPTS))


def back_to_ten(guard: Any) -> Rollback:
    return Rollback(target_at(guard, 10), 10, SKIP)


def test_a_cell_that_was_interrupted_is_run_again(tmp_path: Path) -> None:
    """A new Trainer around the same model: the guard that nobody holds any more makes way."""

    class Interrupting(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 2:
                raise KeyboardInterrupt

    trainer = hf.make_trainer(tmp_path, steps=4)
    model = trainer.model
    left = hugging_face.watch(trainer, run="test")
    trainer.add_callback(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    again = hf.make_trainer(tmp_path, steps=4)
    again.model = again.model_wrapped = model
    watched = hugging_face.watch(again, run="test")
    again.train()
    assert left.guard is not None
    assert left.guard.steps == 2
    assert watched.guard is not None
    assert watched.guard.steps == 4
    assert watched.guard.faults == {}
    assert guard_of(model) is None


class Without:
    """A loader that never had the batches: what a restart has to equal."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        for item, batch in enumerate(self.loader):
            if not SKIP.first <= item // 2 < SKIP.end:
                yield batch

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


def without_the_batches(trainer: Any) -> None:
    inner = trainer.get_train_dataloader
    trainer.get_train_dataloader = lambda: Without(inner())


def hf_bare(data: Callable[[Any], None] = without_the_batches) -> dict[str, Tensor]:
    """The same job without spikeguard."""
    trainer = hf.make_trainer(Path("bare"))
    data(trainer)
    trainer.train()
    return dict(trainer.model.state_dict())


def pl_bare(
    data: Callable[[], Any] = lambda: Without(pl.make_loader(640)),
) -> dict[str, Tensor]:
    loader = data()
    torch.manual_seed(0)
    trainer, module = pl.make_trainer(framework.Callback(), Path("bare")), pl.NextToken()
    trainer.fit(module, loader)
    return dict(module.state_dict())


BARE: dict[Any, Any] = {hf_attempt: hf_bare, pl_attempt: pl_bare}


@each
def test_a_rollback_by_restart_equals_a_run_that_never_saw_the_batches(
    attempt: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Weights bit for bit; the bare run knows nothing of spikeguard. The log says what to do."""
    out = tmp_path / "out"
    caplog.set_level(logging.INFO, "spikeguard")
    with pytest.raises(SystemExit) as ending:
        attempt(out, 17, back_to_ten)
    assert ending.value.code == EXIT_ROLL_BACK
    assert "with exit status 76, to be rolled back. Restart it as it was started" in caplog.text
    assert "and leaves out batches [13, 16)" in caplog.text
    guard, weights = attempt(out)
    assert (guard.steps, guard.position, guard.faults) == (30, 33, {})
    assert ", after step 10, with the batches of position 10; 1 stretch" in caplog.text
    assert "A counter of the loop's own has to begin at guard.steps, which is 10" in caplog.text
    for name, expected in BARE[attempt]().items():
        assert torch.equal(weights[name], expected), name


def grouped_by_length(rows: int, trainer: Any) -> None:
    trainer.train_dataset = hf.make_data(rows)
    if hasattr(trainer.args, "group_by_length"):
        trainer.args.group_by_length = True
    else:
        trainer.args.train_sampling_strategy = "group_by_length"


def shuffled(seed: int | None) -> DataLoader[Any]:
    drawn = None if seed is None else torch.Generator().manual_seed(seed)
    data = pl.make_loader(INSIDE).dataset
    return DataLoader(data, batch_size=8, shuffle=True, generator=drawn)


@pytest.mark.parametrize(
    ("attempt", "data"),
    [
        *((hf_attempt, partial(grouped_by_length, rows)) for rows in (INSIDE, BETWEEN)),
        *((pl_attempt, partial(shuffled, seed)) for seed in (None, 5)),
    ],
    ids=["grouped, inside a pass", "grouped, between two", "shuffled", "shuffled by a generator"],
)
def test_a_shuffled_pass_goes_on_in_its_own_order_after_a_restart(
    attempt: Any, data: Any, tmp_path: Path
) -> None:
    """Of several passes, as a run that knows nothing of spikeguard; bit for bit."""

    def back(guard: Any) -> Rollback:
        return Rollback(target_at(guard, 10), 10)

    with pytest.raises(SystemExit) as ending:
        attempt(tmp_path / "out", 17, back, data)
    assert ending.value.code == EXIT_ROLL_BACK
    _, weights = attempt(tmp_path / "out", data=data)
    for name, expected in BARE[attempt](data).items():
        assert torch.equal(weights[name], expected), name


@pytest.mark.parametrize(("rows", "odd"), [(8 * 13, True), (8 * 14, False)])
def test_a_pass_that_is_no_whole_number_of_steps_is_told_of_at_a_restart_within_it(
    tmp_path: Path, rows: int, odd: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Trainer makes the step at its end of other batches then."""
    caplog.set_level(logging.WARNING, "spikeguard")
    for steps in (10, 12):
        trainer = hf.make_trainer(tmp_path, steps=steps)
        trainer.train_dataset = hf.make_data(rows)
        watched = hugging_face.watch(trainer, run="test")
        trainer.train(resume_from_checkpoint=watched.checkpoint())
    assert ("a pass is 13 batches, no whole number of steps of 2" in caplog.text) is odd


class Projected(torch.optim.SGD):
    """Keeps an object in its state, as GaLore does: Trainer cannot load what it saves of it."""

    def step(self, closure: Any = None) -> Any:
        for parameter in (p for group in self.param_groups for p in group["params"]):
            self.state[parameter].setdefault("projector", Opaque())
        return super().step(closure)


class Opaque:
    """Of no class that `torch.load(weights_only=True)` takes."""


def test_a_rollback_to_what_the_framework_would_not_load_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job would end with status 76, and no start after it could load the optimizer."""
    made = hf.make_trainer

    def with_objects(out: Path) -> Any:
        trainer = made(out)
        trainer.optimizer = Projected(trainer.model.parameters(), lr=0.01)
        return trainer

    monkeypatch.setattr(hf, "make_trainer", with_objects, raising=False)
    guard, _ = hf_attempt(tmp_path / "out", 17, back_to_ten)
    answer = guard.state().results[COMMAND]
    assert (guard.steps, answer.state) == (30, ResultState.REFUSED)
    assert "optimizer.pt: WeightsUnpickler error: Unsupported" in answer.reason


def test_a_run_that_was_under_way_without_spikeguard_does_not_begin_anew(tmp_path: Path) -> None:
    """`checkpoint()` raises with the remedy; with it steps and data go on."""

    class Ending(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step == 20

    out = tmp_path / "out"
    under_way = hf.make_trainer(out)
    under_way.add_callback(Ending())
    under_way.train()
    with pytest.raises(ResumeError, match="checkpoint-20 was written without spikeguard"):
        hf_attempt(out)
    trainer = hf.make_trainer(out)
    watched = hugging_face.watch(trainer, run="test")
    trainer.train(resume_from_checkpoint=str(out / "checkpoint-20"))
    assert watched.guard is not None
    assert (watched.guard.steps, watched.guard.position) == (30, 30)
    bare = hf.make_trainer(tmp_path / "bare")
    bare.train()
    for name, expected in bare.model.state_dict().items():
        assert torch.equal(trainer.model.state_dict()[name], expected), name
    found = hugging_face.watch(hf.make_trainer(out), run="test").checkpoint()
    assert found is not None
    assert found.endswith("checkpoint-30")


def test_lightnings_own_checkpoints_are_not_passed_over_in_silence(tmp_path: Path) -> None:
    kept = framework.callbacks.ModelCheckpoint(tmp_path / "out/checkpoints", every_n_train_steps=5)
    more = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    trainer = framework.Trainer(max_steps=5, accelerator="cpu", callbacks=[kept], **more)
    trainer.fit(pl.NextToken(), pl.make_loader(640))
    with pytest.raises(ResumeError, match=r"\.ckpt was written without spikeguard"):
        pl_attempt(tmp_path / "out")


def pruned_attempt(out: Path, *others: Any) -> Any:
    """`Trainer` keeps one checkpoint of its own."""
    trainer = hf.make_trainer(out)
    trainer.args.save_total_limit = 1
    watched = hugging_face.watch(trainer, run="test")
    watched._checkpoints.healthy_after = 5
    for other in others:
        other.watched = watched
        trainer.add_callback(other)
    trainer.train(resume_from_checkpoint=watched.checkpoint())
    return watched.guard, dict(trainer.model.state_dict())


def test_what_the_server_protects_outlives_the_frameworks_pruning_and_is_gone_back_to(
    tmp_path: Path,
) -> None:
    """Weights bit for bit, as if the checkpoint had never been pruned."""
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ending:
        pruned_attempt(out, callbacks.Protecting(until=30, back=26))
    assert ending.value.code == EXIT_ROLL_BACK
    guard, weights = pruned_attempt(out)
    assert (guard.steps, guard.position, guard.faults) == (30, 33, {})
    for name, expected in hf_bare().items():
        assert torch.equal(weights[name], expected), name


def test_trainer_prunes_what_is_neither_protected_nor_the_newest_healthy(tmp_path: Path) -> None:
    """Of steps 10, 20 and 30: 20 is the newest that 5 steps were built on."""
    pruned_attempt(tmp_path, callbacks.Protecting(until=26))
    found = (int(path.name.rpartition("-")[2]) for path in tmp_path.glob("checkpoint-*"))
    assert sorted(found) == [20, 30]


def files_of(folder: Path) -> dict[str, bytes]:
    """What the framework wrote there, without what is ours."""
    ours = {"manifest.json", "spikeguard-00000.pt"}
    found = (path for path in folder.rglob("*") if path.is_file() and path.name not in ours)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_nothing_that_a_framework_wrote_is_removed_when_a_rollback_gives_it_up(
    tmp_path: Path,
) -> None:
    """It lies aside, where neither pruning nor the next save of that step comes upon it."""
    out = tmp_path / "out"
    with pytest.raises(SystemExit):
        hf_attempt(out, 27, back_to_ten)
    before = files_of(out / "checkpoint-20")
    guard, _ = hf_attempt(out)
    assert (guard.steps, guard.faults) == (30, {})
    (aside,) = (out / "spikeguard/abandoned").iterdir()
    assert aside.name.startswith("checkpoint-20-")
    assert files_of(aside) == before
    assert (out / "checkpoint-20").exists()  # trained again


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x40
    file.write_bytes(content)


@each
def test_a_checkpoint_of_a_frameworks_of_which_a_bit_changed_is_passed_over(
    attempt: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The older one is taken; where all are damaged the run does not begin anew."""
    caplog.set_level(logging.INFO, "spikeguard")
    out = tmp_path / "out"
    attempt(out)
    found = {path.parent for path in out.rglob("manifest.json")}
    _, twenty, thirty = sorted(found, key=lambda folder: folder.name)
    flip(next(path for path in thirty.iterdir() if path.suffix in (".safetensors", ".ckpt")))
    attempt(out)
    assert f"{thirty.name} was passed over: {thirty.name} is damaged: " in caplog.text
    assert f"goes on from checkpoint {twenty.name}, after step 20" in caplog.text
    for file in out.rglob("spikeguard-00000.pt"):
        file.write_bytes(b"")
    with pytest.raises(ResumeError, match=r"could be used.*has 0 bytes, not the \d+ that were"):
        attempt(out)


def test_the_server_hears_what_the_restart_did(tmp_path: Path) -> None:
    """Capabilities first, then the result from the attempt that carried it out."""
    with served(Wire()) as wire:

        def ordered(guard: Any) -> Rollback:
            action = back_to_ten(guard)
            wire.orders.append(Order(COMMAND, guard.attempt, action, 600.0, None))
            await_that(
                lambda: parts_of(guard).outbox.empty
            )  # an answer under way knows nothing of it
            return action

        with pytest.raises(SystemExit):
            pl_attempt(tmp_path / "out", 17, ordered, server=wire.url)
        wire.orders.clear()  # a server orders nothing of an attempt that has ended
        first = wire.attempt
        pl_attempt(tmp_path / "out", server=wire.url)
        started, again = wire.records(AttemptStarted)
        assert Verb.ROLLBACK in started.capabilities
        assert Verb.SKIP_BATCHES not in started.capabilities
        target = next(t for t in wire.records(TargetSaved, first) if t.step == 10)
        assert again.parent is not None
        assert (again.parent.step, again.parent.segment.attempt) == (10, first)
        assert target.position == 10
        segment = wire.records(SegmentStarted, wire.attempt)[0]
        assert (segment.reason, segment.position) == (SegmentReason.RESUME, 10)
        (result,) = wire.records(CommandResult)
        assert (result.command, result.state) == (COMMAND, ResultState.APPLIED)
        trained = sum(len(samples.steps) for samples in wire.records(Samples))
        assert trained == 18 + 20  # it was ordered before step 18 and carried out behind it
        raw = wire.column("grad_norm")
        assert min(raw.values()) > 0.0


@each
def test_a_stop_ends_the_frameworks_loop_in_good_order(attempt: Any, tmp_path: Path) -> None:
    guard, _ = attempt(tmp_path / "out", 12, lambda _: Stop())
    assert guard.steps == 13
    assert guard.state().results[COMMAND].state is ResultState.APPLIED


@each
def test_a_run_that_went_back_by_restart_goes_on_with_the_mitigation_and_the_lowered_rate(
    attempt: Any, tmp_path: Path
) -> None:
    """The mitigation from step 10 to 18; the start that was told to go back never switched it on.
    The framework's checkpoint knows nothing of the rate; ours beside it does."""
    calls, seen = list[str](), list[Any]()
    swap = Mitigation("swap-data", lambda: calls.append("on"), lambda: calls.append("off"))

    def back(guard: Any) -> Rollback:
        target = target_at(guard, 10)
        return Rollback(target, 10, SKIP, 0.5, 400, apply="swap-data", apply_steps=8)

    with pytest.raises(SystemExit):
        attempt(tmp_path / "out", 17, back, mitigations=[swap])
    assert calls == []

    def look(guard: Any) -> CheckpointNow:
        seen.append(guard.mitigations)
        return CheckpointNow()

    guard, _ = attempt(tmp_path / "out", 17, look, mitigations=[swap])
    assert (set(seen), calls) == ({("swap-data",)}, ["on", "off"])
    assert guard.mitigations == ()
    assert (guard.state().lr_scale.factor, guard.state().lr_scale.start) == (0.5, 10)


def test_the_reported_loss_is_the_one_that_trainer_logs_and_a_nan_that_it_hides(
    tmp_path: Path,
) -> None:
    """`logging_nan_inf_filter` replaces it by the mean of what was logged before."""
    trainer = hf.make_trainer(tmp_path / "out")
    assert trainer.args.logging_nan_inf_filter
    plain = trainer.compute_loss

    def poisoned(model: Any, inputs: Any, **named: Any) -> Any:
        loss = plain(model, inputs, **named)
        return loss * float("nan") if trainer.state.global_step == 16 else loss

    trainer.compute_loss = poisoned
    with served(Wire()) as wire:
        hugging_face.watch(trainer, run="test", server=wire.url)
        trainer.train()
        losses = {step: value for (_, step), value in wire.column("loss").items()}
        unseen, entropy = wire.column("unseen_tokens"), wire.column("token_entropy")
        dropped = wire.column("update_dropped")
    first, *logged = (float(entry["loss"]) for entry in trainer.state.log_history[:-1])
    assert sum(losses[step] for step in range(1, 11)) / 10 == pytest.approx(first, abs=1e-3)
    assert [step for step, value in losses.items() if value != value] == [17]
    assert dropped[0, 17] == 1.0
    assert all(loss == loss for loss in logged)
    assert (unseen[0, 1], unseen[0, 30]) == (1.0, 0.0)  # of `input_ids`, shown unasked
    assert 3.0 < entropy[0, 30] < math.log(64) + 1e-6


def test_lightning_gives_every_rank_its_own_part_of_a_watched_loader(tmp_path: Path) -> None:
    """It does so for a DataLoader only; without it all ranks would train on the same rows."""
    watched = lightning.Watched(tmp_path / "checkpoints", run="test")
    loader = watched.loader(pl.make_loader(64))
    trainer = framework.Trainer(accelerator="cpu", devices=2, strategy="ddp", **QUIET)
    watched.setup(trainer, pl.NextToken(), "fit")
    sampler = loader.sampler
    assert isinstance(sampler, DistributedSampler)
    assert (sampler.num_replicas, len(loader)) == (2, 4)
    loader.set_epoch(7)
    assert sampler.epoch == 0  # passes are counted by positions


def test_what_a_framework_says_itself_is_refused_by_name_when_it_is_given_too(
    tmp_path: Path,
) -> None:
    for name in ("scheduler", "micro_batches", "feed"):
        given: dict[str, Any] = {name: 2}
        with pytest.raises(AttachError, match=name):
            lightning.Watched(tmp_path / "checkpoints", run="test", **given)
        with pytest.raises(AttachError, match=name):
            hugging_face.watch(SimpleNamespace(), run="test", **given)


def test_a_module_that_steps_its_optimizers_by_hand_is_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    watched = lightning.Watched(tmp_path / "checkpoints", run="test")
    trainer = framework.Trainer(accelerator="cpu", max_steps=2, callbacks=[watched], **QUIET)
    with pytest.raises(AttachError, match=r"steps its optimizers \(2\) by hand") as refused:
        trainer.fit(callbacks.ByHand(), watched.loader(pl.make_loader(64)))
    assert "attach(model, [OPTIMIZERS])" in refused.value.remedy
    assert watched.guard is None
