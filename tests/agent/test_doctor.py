"""What the doctor says of a job that has a fault, and that it is silent about one that has not."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spikeguard import AttachError, CheckpointDirectory, Guard, Settings, attach
from spikeguard.doctor.rules import (
    EARLY,
    WATCHED,
    Family,
    Group,
    Schedule,
    Setup,
    early,
    findings_in,
    loss_fell,
    unlimited,
)
from spikeguard_protocol import AttemptStarted
from spikeguard_protocol.findings import (
    RULES,
    Finding,
    findings_from_settings,
    findings_to_settings,
)

from .job import FAST
from .wire import Wire, await_that, served

TOKENS = 1_024
GOOD = Group("AdamW", Family.ADAM, rate=3e-4, decay=0.1, beta2=0.95, width=4_096)
MODEL = Setup((GOOD,), tokens=50_257, tokens_per_step=2**19)


def names(findings: Iterable[Finding]) -> set[str]:
    return {each.name for each in findings}


def with_group(**changes: Any) -> Setup:
    return replace(MODEL, groups=(replace(GOOD, **changes),))


MUON, SGD, LION = Family.MUON, Family.SGD, Family.LION


@pytest.mark.parametrize(
    ("name", "faulty", "sound"),
    [
        ("rate_high", with_group(rate=0.02), with_group(rate=6e-4)),
        ("rate_high", with_group(rate=0.02), with_group(rate=0.02, width=64)),
        ("rate_high", with_group(rate=0.02), with_group(rate=0.3, hidden=False)),
        ("rate_high", with_group(rate=6e-3, family=LION), with_group(rate=1e-4, family=LION)),
        (
            "rate_high",
            with_group(rate=0.02, family=Family.MUON_RMS),
            with_group(rate=0.02, family=MUON),
        ),
        ("beta2_high", with_group(beta2=0.999), with_group(beta2=0.99)),
        (
            "beta2_high",
            with_group(beta2=0.999),
            replace(with_group(beta2=0.999), tokens_per_step=512),
        ),
        ("beta2_high", with_group(beta2=0.999), replace(with_group(beta2=0.999), tokens=None)),
        ("no_weight_decay", with_group(decay=0.0), with_group(decay=0.0, hidden=False)),
        (
            "no_weight_decay",
            with_group(decay=0.0),
            replace(MODEL, groups=(GOOD, replace(GOOD, decay=0.0))),
        ),
        (
            "fp16_without_scaler",
            replace(MODEL, half=True, scaled=False),
            replace(MODEL, half=True, scaled=True),
        ),
    ],
)
def test_a_rule_speaks_of_the_fault_alone(name: str, faulty: Setup, sound: Setup) -> None:
    assert name in names(findings_in(faulty))
    assert name not in names(findings_in(sound))


def test_nothing_is_said_of_the_usual_setups() -> None:
    """GPT-3, LLaMA, Muon as published and as matched to AdamW, an embedding with its own rate."""
    muon = replace(GOOD, family=MUON, rate=0.02, beta2=None)
    table = replace(GOOD, rate=0.3, decay=0.0, beta2=0.95, hidden=False)
    for setup in (
        MODEL,
        with_group(rate=6e-4),
        replace(MODEL, groups=(muon, table)),
        replace(MODEL, groups=(replace(muon, family=Family.MUON_RMS, rate=4e-4), table)),
        Setup((Group("Prodigy", None, rate=1.0),)),
    ):
        assert names(findings_in(setup)) == set()


# ---- what the first steps show -----------------------------------------------------------------


def said_early(columns: dict[str, list[float]]) -> set[str]:
    return names(early(columns, all_train=True))


def test_the_first_steps_are_judged_by_what_was_measured() -> None:
    sound = {
        "update_norm_sampled": [0.1] * EARLY,
        "grad_norm": [0.5] * EARLY,
    }
    assert said_early(sound) == set()
    assert said_early(sound | {"update_norm_sampled": [0.0] * EARLY}) == {"weights_unmoved"}
    frozen = early({"update_norm_sampled": [0.0] * EARLY}, all_train=False)
    assert names(frozen) == set()


def test_a_limit_shows_in_the_largest_norms() -> None:
    wild = [1.0 + 0.3 * math.sin(step) for step in range(EARLY)]
    wild[40], wild[90] = 17.31, 6.2
    assert names(unlimited(wild)) == {"no_clipping"}
    assert names(unlimited([min(norm, 5.137) for norm in wild])) == set()
    assert names(unlimited([min(norm, 8.0) for norm in wild])) == set()
    assert names(unlimited([0.3 + step % 7 / 50 for step in range(EARLY)])) == set()


def test_a_loss_that_stays_a_guess_is_told() -> None:
    guess = math.log(TOKENS)
    stays = [guess + 0.01 * (step % 3) for step in range(WATCHED)]
    falls = [guess - 0.004 * step for step in range(WATCHED)]
    assert names(loss_fell(stays, TOKENS)) == {"loss_not_falling"}
    assert names(loss_fell(falls, TOKENS)) == set()
    assert names(loss_fell(falls[:-130] + [9.0] * 130, TOKENS)) == set()  # and exploded
    assert names(loss_fell([2.1] * WATCHED, TOKENS)) == set()  # it goes on from a trained model


def schedule(rates: Sequence[float]) -> set[str]:
    """As the doctor looks: every 16 steps."""
    seen, found, course = Schedule(), set[str](), dict[int, float]()
    for step, rate in enumerate(rates, start=1):
        course[step] = rate
        if step % 16 == 0:
            found |= names(seen.look(course, True))
    return found


def warmed(count: int) -> Iterator[float]:
    return (3e-4 * min(1.0, step / 100) for step in range(1, count + 1))


def test_a_schedule_is_told_of_where_it_lacks_a_warm_up_jumps_or_ends() -> None:
    assert schedule([*warmed(300), *(3e-4 * (1 - n / 400) for n in range(380))]) == set()
    assert schedule([3e-4] * 160) == {"no_warmup"}
    falling = [3e-4 * (1 - n / 400) for n in range(340)]
    assert schedule([*warmed(300), *falling, *[3e-4] * 32]) == {"rate_jump"}
    assert schedule([*warmed(300), *[0.0] * 64]) == {"rate_zero"}


# ---- in a loop ---------------------------------------------------------------------------------


class Language(nn.Module):
    """A model of one block with `TOKENS` tokens."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, TOKENS, bias=False)
        for weight in (self.embedding.weight, self.head.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        logits: Tensor = self.head(hidden + self.down(torch.relu(self.up(self.norm(hidden)))))
        return logits


def adam(model: nn.Module, **changes: Any) -> torch.optim.Optimizer:
    given: dict[str, Any] = {"lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1} | changes
    kind = given.pop("kind", torch.optim.AdamW)
    optimizer: torch.optim.Optimizer = kind(model.parameters(), **given)
    return optimizer


def watched(model: nn.Module, optimizer: Any, folder: Path, **changes: Any) -> Guard:
    settings = replace(FAST, snapshot_every=0, **changes.pop("settings", {}))
    return attach(model, optimizer, run="test", directory=folder, settings=settings, **changes)


def train(
    guard: Guard, model: nn.Module, optimizer: Any, steps: int, *, same: bool = False
) -> None:
    """On batches of one rule, warmed up, clipped."""
    torch.manual_seed(3)
    fixed = torch.randint(0, TOKENS, (2, 8))
    data = [fixed if same else torch.randint(0, TOKENS, (2, 8)) for _ in range(steps)]
    peaks = [group["lr"] for group in optimizer.param_groups]
    for batch in guard.batches(data):
        for group, rate in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = rate * min(1.0, (guard.steps + 1) / 50)
        logits = model(batch).float().flatten(0, 1)
        loss = guard.loss(nn.functional.cross_entropy(logits, (batch + 1).flatten() % TOKENS))
        loss.backward()
        guard.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        guard.step()


def found(guard: Guard) -> set[str]:
    return names(guard.state().findings)


def test_of_a_sound_job_nothing_is_said_from_attach_to_the_end(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Language()
    optimizer = adam(model)
    guard = watched(model, optimizer, tmp_path)
    train(guard, model, optimizer, WATCHED + 64)
    guard.finish()
    assert (found(guard), guard.faults) == (set(), {})


def test_attach_tells_log_server_and_state_of_what_it_finds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "spikeguard")
    with served(Wire()) as wire:
        model = Language()
        optimizer = adam(model, lr=0.5, betas=(0.9, 0.999), weight_decay=0.0)
        guard = watched(model, optimizer, tmp_path, server=wire.url)
        train(guard, model, optimizer, 3)
        expected = {"rate_high", "beta2_high", "no_weight_decay"}
        assert found(guard) == expected
        await_that(lambda: wire.records(AttemptStarted))
        (first, *_) = findings_from_settings(wire.records(AttemptStarted)[-1].settings)
        assert (first.name, first.rule.level) == ("rate_high", "warning")
        assert "a rate of 0.5, usual up to 0.08" in first.evidence
        guard.finish()
    (line,) = [r for r in caplog.records if r.message.startswith("the doctor found")]
    assert line.levelno == logging.WARNING
    for name in expected:
        assert all(part in line.message for part in (name, RULES[name].remedy, RULES[name].source))


def test_what_is_silenced_is_not_said_and_an_unknown_name_is_refused(tmp_path: Path) -> None:
    model = Language()
    optimizer = adam(model, weight_decay=0.0)
    guard = watched(
        model, optimizer, tmp_path, settings={"silenced_findings": ("no_weight_decay",)}
    )
    assert found(guard) == set()
    guard.finish()
    with pytest.raises(AttachError, match=r"silenced_findings.*'no_such'.*rate_high"):
        Settings(silenced_findings=("no_such",))


def test_the_doctors_own_failure_is_counted_and_not_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("on purpose")

    for name in ("setup_of", "early"):
        monkeypatch.setattr(f"spikeguard.doctor.doctor.{name}", fails)
    monkeypatch.setattr(Schedule, "look", fails)
    model = Language()
    optimizer = adam(model)
    guard = watched(model, optimizer, tmp_path)
    train(guard, model, optimizer, EARLY + 32)
    guard.finish()
    assert guard.steps == EARLY + 32
    assert set(guard.faults) == {"doctor"}


@pytest.mark.parametrize("sound", [False, True])
def test_weights_in_bf16_without_masters_are_told_with_the_share_that_cannot_change(
    tmp_path: Path, sound: bool
) -> None:
    """The share is that of the elements which a step of a fifth of the rate leaves alike."""
    torch.manual_seed(1)
    model = Language().to(torch.float32 if sound else torch.bfloat16)
    optimizer = adam(model, lr=3e-4)
    guard = watched(model, optimizer, tmp_path)
    train(guard, model, optimizer, EARLY + 64)
    guard.finish()
    if sound:
        assert found(guard) == set()
        return
    said = {each.name: each.evidence for each in guard.state().findings}
    assert "low_precision_weights" in said
    assert "norm.weight 100%" in said["low_precision_weights"]
    weights = torch.cat([p.detach().flatten() for p in Language().bfloat16().parameters()])
    same = (weights + 0.2 * 3e-4 == weights) | (weights - 0.2 * 3e-4 == weights)
    share = float(same[weights != 0].float().mean())
    told = int(said["low_precision_weights"].split("cannot change ")[1].split("%")[0]) / 100
    assert abs(told - share) < 0.15  # half-way cases go either way


@pytest.mark.parametrize("same", [True, False])
def test_the_same_batch_again_and_again_is_told(tmp_path: Path, same: bool) -> None:
    model = Language()
    optimizer = adam(model)
    guard = watched(model, optimizer, tmp_path)
    train(guard, model, optimizer, 32, same=same)
    guard.finish()
    assert found(guard) == ({"same_batch"} if same else set())


@pytest.mark.parametrize("changed", [True, False])
def test_a_rate_that_the_checkpoint_overrides_is_told(tmp_path: Path, changed: bool) -> None:
    for rate in (2e-3, 1e-3 if changed else 2e-3):
        model = Language()
        optimizer = adam(model, lr=rate)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        guard = watched(
            model,
            optimizer,
            tmp_path / "guard",
            scheduler=scheduler,
            checkpoints=CheckpointDirectory(tmp_path / "checkpoints", background=False),
        )
        guard.resume()
        train(guard, model, optimizer, 2)
        guard.checkpoint()
        guard.finish()
    told = {each.name: each.evidence for each in guard.state().findings}
    assert told.keys() == ({"restored_rate"} if changed else set())
    if changed:
        assert "initial_lr 0.001 is configured, 0.002 was restored" in told["restored_rate"]


def test_findings_take_the_room_that_is_left_the_gravest_first() -> None:
    many = [Finding(name, "e" * 400) for name in sorted(RULES)]
    told = findings_to_settings(many, 60)
    assert len(told) == 4
    assert {each.rule.level for each in findings_from_settings(told)} == {"warning"}
    assert max(map(len, told.values())) == 300
    assert findings_to_settings(many, 64) == {}


def test_the_page_names_every_rule_with_its_level_and_source() -> None:
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text()
    for rule in RULES.values():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{rule.name}` |")]
        _, _, level, _, source, _ = (cell.strip() for cell in row.split("|"))
        assert (level, source.replace("this page", "docs/doctor.md")) == (rule.level, rule.source)
