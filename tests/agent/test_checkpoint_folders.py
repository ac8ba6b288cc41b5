"""What lies in a checkpoint folder: whose it is, whether it is whole, and when it goes."""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spikeguard import CheckpointDirectory, UserCheckpoints
from spikeguard_protocol import Ack, BatchRange, Medium, Rollback

from .heard import hear, parts_of
from .job import Job, assert_same, order, target_at
from .wire import await_that

pytestmark = pytest.mark.slow  # seconds of restarts

FRAMEWORKS = {  # as their own checkpoints lie in an output folder
    "hugging face": [
        *(f"checkpoint-{n}/{file}" for n in (500, 1000) for file in (
            "model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth",
            "trainer_state.json", "training_args.bin",
        )),
        "checkpoint-1500/global_step1500/mp_rank_00_model_states.pt",
        "model.safetensors",
    ],
    "accelerate": [
        "checkpoint-20/random_states_0.pkl",
        "checkpoints/checkpoint_0/model.safetensors",
        "checkpoint_1/optimizer.bin",
    ],
    "lightning": [
        "lightning_logs/version_0/checkpoints/epoch=0-step=500.ckpt",
        "lightning_logs/version_0/hparams.yaml",
        "last.ckpt",
        "checkpoint-epoch=1.ckpt/.metadata",
    ],
    "torchtitan": ["checkpoint/step-500/.metadata", "checkpoint/step-500/__0_0.distcp"],
    "deepspeed": [
        "latest",
        "zero_to_fp32.py",
        "global_step500/zero_pp_rank_0_mp_rank_00_optim_states.pt",
        "checkpoint-epoch3/global_step500/mp_rank_00_model_states.pt",
    ],
    "named as ours are": [
        "checkpoint-00000010-0f3a9c21.0.bak/manifest.json",
        "checkpoint-00000010-0f3a9c21.0/__0_0.distcp",
        "checkpoint-00000010-0f3a9c21.0/.metadata",
        "spikeguard/kept/checkpoint-9/model.safetensors",
        "spikeguard/kept/.checkpoint-5.0f3a9c21/model.safetensors",
    ],
}  # fmt: skip


def laid_out(out: Path, elsewhere: Path) -> None:
    """Folders of all of them, a day old, some of names that chance chose, and a link."""
    chance = random.Random(5)
    letters = "0123456789abcdef.-_="
    drawn = ["".join(chance.choices(letters, k=chance.randint(1, 20))) for _ in range(30)]
    files = [file for files in FRAMEWORKS.values() for file in files]
    for name in (*files, *(f"checkpoint-{word}x/weights.bin" for word in drawn)):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(chance.randbytes(100))
    elsewhere.mkdir()
    (elsewhere / "weights.bin").write_bytes(b"w")
    (out / "checkpoint-00000020-0f3a9c21.0").symlink_to(elsewhere)
    day_ago = time.time() - 86_400
    for path in (*out.rglob("*"), *elsewhere.rglob("*"), elsewhere):
        os.utime(path, (day_ago, day_ago), follow_symlinks=False)


def all_in(*folders: Path) -> dict[str, tuple[float, bytes]]:
    """When each file was written, and what it holds."""
    return {
        str(path): (path.lstat().st_mtime, path.read_bytes())
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("kind", ["ours", "the job's own"])
def test_nothing_that_others_wrote_is_changed_over_saves_rollbacks_and_restarts(
    tmp_path: Path, kind: str
) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    laid_out(out, elsewhere)
    before = all_in(out, elsewhere)
    job_of: list[Job] = []
    for attempt in range(3):
        checkpoints = (
            CheckpointDirectory(out, every=5, keep=1, healthy_after=0, background=False)
            if kind == "ours"
            else UserCheckpoints(
                out,
                lambda folder: torch.save(job_of[-1].model.state_dict(), folder / "mine.pt"),
                lambda folder: job_of[-1].model.load_state_dict(torch.load(folder / "mine.pt")),
                every=5, keep=1, healthy_after=0,
            )
        )  # fmt: skip
        job_of.append(job := Job(tmp_path, checkpoints=checkpoints))
        began = job.guard.resume()
        assert (began > 0) is (attempt > 0)
        job.train_to(began + 12)
        order(job, Rollback(target_at(job, began + 10, Medium.DISK), began + 10))
        job.train_to(began + 17)
        job.guard.finish()
    await_that(lambda: "spikeguard-removal" not in {each.name for each in threading.enumerate()})
    after = all_in(out, elsewhere)
    assert {path: after.get(path) for path in before} == before
    assert (out / "checkpoint-00000020-0f3a9c21.0").is_symlink()


# ---- damage ------------------------------------------------------------------------------------


def flipped(file: Path) -> None:
    """One bit of an exponent, in the middle of the file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 | 3] ^= 0x40
    file.write_bytes(content)


def zeroed(file: Path) -> None:
    """A page, as a crash or a bad disk leaves it."""
    with file.open("r+b") as opened:
        opened.seek(4096)
        opened.write(bytes(4096))


def swapped(file: Path) -> None:
    """The same file of the checkpoint before, as a wrong `rsync` leaves it."""
    before = sorted(file.parent.parent.iterdir())
    file.write_bytes((before[before.index(file.parent) - 1] / file.name).read_bytes())


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


DAMAGES = [flipped, zeroed, swapped, cut]


def trained(tmp_path: Path, steps: int) -> Job:
    return Job(tmp_path).train_to(steps)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_resume_takes_no_checkpoint_of_which_a_byte_changed(
    tmp_path: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    trained(tmp_path, 51).guard.finish()
    newest = CheckpointDirectory(tmp_path / "checkpoints").targets()[-1]
    damage(tmp_path / "checkpoints" / newest.name / "__0_0.distcp")
    again = Job(tmp_path)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        assert again.guard.resume() == 25
    again.guard.finish()
    (said,) = [r.message for r in caplog.records if "passed over" in r.message]
    assert f"{newest.name} is damaged: __0_0.distcp has " in said


def test_a_rollback_to_a_damaged_checkpoint_is_refused_by_name_and_the_next_one_is_exact(
    tmp_path: Path,
) -> None:
    """The run goes on as if nobody had asked."""
    job = trained(tmp_path, 60)
    name = target_at(job, 50, Medium.DISK)
    flipped(tmp_path / "checkpoints" / name / "__0_0.distcp")
    before = job.everything()
    refused = order(job, Rollback(name, 50))
    parts_of(job.guard).inbox.changed = True
    job.guard._polling.alone()
    assert_same(job.everything(), before)
    answer = job.guard.state().results[refused]
    assert answer.state == "refused"
    assert f"could not be prepared: ValueError: {name} is damaged: __0_0.distcp" in answer.reason
    order(job, Rollback(target_at(job, 25, Medium.DISK), 25), 2)
    job.train_to(25)
    job.guard.finish()
    never = Job().train_to(25)
    never.guard.finish()
    assert_same(job.everything()["model"], never.everything()["model"])


@pytest.mark.parametrize("file", ["mine.pt", "rank-00000.pt"])
def test_what_the_jobs_own_functions_wrote_is_checked_too(tmp_path: Path, file: str) -> None:
    job_of: list[Job] = []
    checkpoints = UserCheckpoints(
        tmp_path / "checkpoints",
        lambda folder: torch.save(job_of[-1].model.state_dict(), folder / "mine.pt"),
        lambda folder: job_of[-1].model.load_state_dict(torch.load(folder / "mine.pt")),
        every=10,
    )
    job_of.append(job := Job(tmp_path, checkpoints=checkpoints))
    job.train_to(21)
    job.guard.finish()
    newest = checkpoints.targets()[-1]
    flipped(checkpoints.folder(newest.name) / file)
    job_of.append(again := Job(tmp_path, checkpoints=checkpoints))
    assert again.guard.resume() == 10
    again.guard.finish()


def test_a_weight_that_never_was_finite_does_not_keep_the_run_from_going_back(
    tmp_path: Path,
) -> None:
    """Unused rows are left as memory was, by some."""
    job = Job(tmp_path)
    job.model.register_buffer("unused", torch.full((3,), float("nan")))
    job.train_to(30)
    order(job, Rollback(target_at(job, 25, Medium.DISK), 25))
    job.train_step()
    assert job.guard.steps == 25
    job.guard.finish()


def spoilt(job: Job, kind: str) -> None:
    """One value of the first weight, or of its second moment: as a bad transfer leaves it."""
    weight = next(job.model.parameters())
    with torch.no_grad():
        if kind == "weight":
            weight[0, 0] = float("nan")
        else:
            job.optimizer.state[weight]["exp_avg_sq"][0, 0] = -1e-3


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("weight", "1 of 256 values of model.0.weight are not finite"),
        ("moment", "optimizer.state.0.weight.exp_avg_sq, a mean of squares, has values below 0"),
    ],
)
def test_a_checkpoint_that_holds_what_no_training_heals_is_told_so_kept_apart_and_passed_over(
    tmp_path: Path, kind: str, said: str, background: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """However many follow: the newest whole one is never removed for them."""
    where = tmp_path / "checkpoints"

    def checkpoints() -> CheckpointDirectory:
        return CheckpointDirectory(where, every=10, keep=2, healthy_after=0, background=background)

    job = Job(tmp_path, checkpoints=checkpoints())
    for step in (10, 20, 25):
        job.train_to(step)
        await_that(lambda: not job.guard.state().saving)
    spoilt(job, kind)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        name = job.guard.checkpoint()
        (there,) = (target for target in checkpoints().targets() if target.name == name)
        assert there.damage == said
        for step in (30, 40, 50, 60):
            job.train_to(step)
            await_that(lambda: not job.guard.state().saving)
        job.guard.finish()
    found = {target.step: target.damage for target in checkpoints().targets()}
    assert [step for step, damage in found.items() if damage is None] == [20]
    assert f"{name} is written and damaged: {said}." in caplog.text
    again = Job(tmp_path, checkpoints=checkpoints())
    assert again.guard.resume() == 20
    again.guard.finish()
    assert "was passed over: damaged" in caplog.text


# ---- what a rollback gave up -------------------------------------------------------------------


def test_what_a_rollback_gave_up_stays_until_its_incident_is_over_and_a_night_has_passed(
    tmp_path: Path,
) -> None:
    """So that a mistaken approval can be undone; also over a restart."""
    directory = CheckpointDirectory(tmp_path / "saved", 10, 1, healthy_after=0, background=False)
    job = Job(tmp_path, checkpoints=directory).train_to(11)
    first = directory.targets()[0].name
    hear(job.guard, Ack(1, protected=(first,)))
    job.train_to(25)
    given_up = directory.folder(target_at(job, 20, Medium.DISK))

    def held() -> list[int]:
        return [t.step for t in directory.targets()]

    def hours_pass(hours: float) -> None:
        then = (given_up / ".abandoned").stat().st_mtime - 3600 * hours
        os.utime(given_up / ".abandoned", (then, then))

    order(job, Rollback(first, 10, BatchRange(10, 12)))
    job.train_to(10)
    hear(job.guard, Ack(1, protected=(first,)))
    job.train_to(31)
    hours_pass(24)  # the incident lasts
    job.train_to(41)
    assert held() == [10, 20, 40]
    hear(job.guard, Ack(1))  # and is over
    job.train_to(51)
    assert held() == [20, 50]
    job.guard.finish()
    again = Job(tmp_path, checkpoints=directory)
    assert again.guard.resume() == 50
    hours_pass(11)
    again.train_to(61)
    assert held() == [20, 60]
    hours_pass(2)
    again.train_to(71)
    assert held() == [70]
    await_that(lambda: not given_up.exists())
    again.guard.finish()


def test_what_kept_a_checkpoint_from_being_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    """torch's exception carries the stacks of all ranks, and none of them is of the job's code."""
    job = Job(tmp_path).train_to(26)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").touch()
    job.train_to(51)
    job.guard.finish()
    assert job.guard.faults["checkpoint"] == 1
    said = "checkpoint: rank 0: NotADirectoryError(20, 'Not a directory')"
    assert job.guard.state().newest_fault == said
