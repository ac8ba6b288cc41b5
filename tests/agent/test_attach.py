"""A wrong call explains itself before anything has begun, and a right one changes nothing."""

from __future__ import annotations

import errno
import fcntl
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import getclosurevars
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spikeguard
from spikeguard import AttachError, CheckpointDirectory, Settings, attach
from spikeguard.settings import read_connection, with_environment
from spikeguard_protocol import AttemptStarted, ProtocolError

from .job import FAST, Job
from .optimizer_kinds import Lookahead, Sam
from .wire import Wire, served

MODEL = nn.Linear(2, 2)
OPTIMIZER = torch.optim.AdamW(MODEL.parameters())

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("model", {"model": "gpt"}),
    ("optimizer", {"optimizer": None}),
    ("optimizer", {"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)}),
    ("run", {"run": None}),
    ("run", {"run": "no spaces, please"}),
    ("project", {"project": "a/b"}),
    ("server", {"server": "localhost:8000"}),
    ("scheduler", {"scheduler": object()}),
    ("state", {"state": [object()]}),
    ("state", {"state": MODEL}),
    ("checkpoints", {"checkpoints": "runs/checkpoints"}),
    ("checkpoints", {"checkpoints": Path("runs/checkpoints")}),
    ("tokens_per_step", {"tokens_per_step": 0}),
    ("tokens_per_step", {"tokens_per_step": "4096"}),
    ("tokens_per_step", {"tokens_per_step": 2.5}),
    ("micro_batches", {"micro_batches": 0}),
    ("micro_batches", {"micro_batches": True}),
    ("micro_batches", {"micro_batches": None}),
    ("run", {"run": 7}),
    ("project", {"project": 7}),
    ("server", {"server": 8000}),
    ("token", {"token": b"secret"}),
    ("directory", {"directory": 3}),
    ("settings", {"settings": {}}),
    ("settings", {"settings": Settings}),
    ("forward", {"forward": 3}),
    ("name_batch", {"name_batch": "doc_ids"}),
    ("ranks", {"ranks": {"replicated": True}}),
    ("setings", {"setings": Settings()}),
    ("colour", {"colour": "red"}),
]


@pytest.mark.parametrize(("argument", "changes"), WRONG)
def test_a_wrong_argument_is_named_with_the_remedy(
    tmp_path: Path, argument: str, changes: dict[str, Any]
) -> None:
    given: dict[str, Any] = {
        "model": MODEL,
        "optimizer": OPTIMIZER,
        "run": "test",
        "directory": tmp_path,
    }
    given.update(changes)
    model, optimizer = given.pop("model"), given.pop("optimizer")
    with pytest.raises(spikeguard.AttachError, match=rf"attach\({argument}=") as raised:
        spikeguard.attach(model, optimizer, **given)
    assert raised.value.argument == argument
    assert raised.value.remedy
    assert not OPTIMIZER._optimizer_step_pre_hooks


@pytest.mark.parametrize("given", ["optimizer", "the one inside", "an engine", "as optimizer"])
def test_what_deepspeed_keeps_to_itself_is_refused_in_one_sentence(given: str) -> None:
    """Its wrappers derive from a class of this name, as ZeRO's and those of its bf16 and fp16; a
    parameter knows its partition."""
    wrapper = type("FP16_UnfusedOptimizer", (type("DeepSpeedOptimizer", (), {}),), {})()
    model = nn.Linear(2, 2)
    wrapper.optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(6))])
    if given == "the one inside":
        model.weight._hp_mapping = None  # type: ignore[attr-defined]
    engine = type("DeepSpeedEngine", (nn.Sequential,), {})(model)
    engine.optimizer = wrapper
    pairs = {
        "optimizer": (model, wrapper),
        "the one inside": (model, wrapper.optimizer),
        "an engine": (engine, wrapper.optimizer),
        "as optimizer": (model, engine),
    }
    with pytest.raises(spikeguard.AttachError, match=r"ZeRO 1 to 3.* not supported") as refused:
        spikeguard.attach(*pairs[given], run="test")
    assert "Give" not in str(refused.value)


def test_runs_side_by_side_need_no_directory_and_runs_in_one_folder_are_refused(
    tmp_path: Path,
) -> None:
    for run, folder in (("one", "a"), ("two", "b"), ("two", "b")):
        kept = CheckpointDirectory(tmp_path / folder)
        spikeguard.attach(MODEL, OPTIMIZER, run=run, checkpoints=kept).finish()
    kept = CheckpointDirectory(tmp_path / "a")
    with pytest.raises(spikeguard.AttachError, match="journal of run 'one'") as refused:
        spikeguard.attach(MODEL, OPTIMIZER, run="two", checkpoints=kept)
    assert str(tmp_path / "a") in str(refused.value)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(spikeguard.AttachError, match="directory"):
        spikeguard.attach(MODEL, OPTIMIZER, run="one", directory=tmp_path / "file")


WRONG_SETTINGS: list[tuple[str, Any, str]] = [
    ("snapshots", 2.5, "Give a whole number, at least 1"),
    ("slow_signals_every", 2.5, "Give a whole number, at least 1"),
    ("slow_signals_every", "10", "Give a whole number, at least 1"),
    ("snapshot_every", True, "Give a whole number, at least 0"),
    ("flight_recorder", 201, "Give at most 200"),
    ("flush_s", math.inf, "Give at most 1e"),
    ("agreement_timeout_s", 1e12, "Give at most 1e"),
    ("timeout_s", math.nan, "Give at least 0"),
    ("timeout_s", None, "Give a number, at least 0"),
    ("snapshot_budget", math.inf, "Give at most 0.5"),
    ("snapshot_budget", -1.0, "Give at least 0"),
    ("drop_non_finite", 1, "Give True or False"),
    ("observe_only", 1, "Give True or False"),
    ("allowed_verbs", ("rollback", "reboot"), "Give a tuple of some of rollback, skip_batches, "),
    ("allowed_verbs", "stop", "Give a tuple of some of"),
    ("lr_factor_least", 0.0, "Give at least 1e-06"),
    ("lr_factor_least", 1.5, "Give at most 1"),
    ("lr_factor_least", math.nan, "Give at least 1e-06"),
    ("lr_steps_most", -1, "Give at least 0"),
    ("skip_batches_most", 2**53, "Give at most 1e"),
    ("rollback_steps_most", 1.5, "Give a whole number, at least 0"),
    ("rollbacks_a_day", True, "Give a whole number, at least 0"),
    ("orders_a_day", math.inf, "Give a whole number, at least 0"),
    ("orders_an_hour", 0, "Give at least 1"),
]


@pytest.mark.parametrize(("name", "value", "remedy"), WRONG_SETTINGS)
def test_a_setting_out_of_range_is_named_with_the_remedy(
    name: str, value: Any, remedy: str
) -> None:
    chosen: dict[str, Any] = {name: value}
    with pytest.raises(spikeguard.AttachError, match=f"{name} is .*{remedy}"):
        Settings(**chosen)


@pytest.mark.parametrize("name", ["OBSERVE_ONLY", "ALLOW_PLAIN_HTTP", "BATCH_TEXT"])
def test_a_switch_of_the_environment_is_on_or_off_and_nothing_else(name: str) -> None:
    field, name = name.lower(), f"SPIKEGUARD_{name}"
    for word, on in (("1", True), ("Yes", True), ("0", False), ("off", False), ("", True)):
        given: dict[str, Any] = {field: True}
        chosen = with_environment(Settings(**given), {name: word})
        assert getattr(chosen, field) is on
    with pytest.raises(spikeguard.AttachError, match=f"{name} is 'maybe'.*Set it to 1 or 0"):
        with_environment(Settings(), {name: "maybe"})
    with pytest.raises(spikeguard.AttachError, match=f"{name}S is no setting.*Write {name},"):
        with_environment(Settings(), {f"{name}S": "1"})


def test_an_optimizer_or_a_model_has_one_guard_at_a_time(tmp_path: Path) -> None:
    """Two would hook it twice; a guard that has finished makes way."""
    model = nn.Linear(2, 2)
    optimizer, another = (torch.optim.AdamW(model.parameters()) for _ in range(2))
    guard = spikeguard.attach(model, optimizer, run="test", directory=tmp_path)
    for argument, given in (("optimizer", optimizer), ("model", another)):
        with pytest.raises(spikeguard.AttachError, match=r"finish\(\) it first") as raised:
            spikeguard.attach(model, given, run="test", directory=tmp_path / "other")
        assert raised.value.argument == argument
    assert spikeguard.guard_of(model) is spikeguard.guard_of(optimizer) is guard
    assert spikeguard.guard_of(another) is None
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    assert not another._optimizer_step_pre_hooks
    del guard
    left = spikeguard.guard_of(model)  # by a loop whose names are gone
    assert left is not None
    left.finish()
    assert spikeguard.guard_of(model) is None
    spikeguard.attach(model, optimizer, run="test", directory=tmp_path).finish()
    assert not optimizer._optimizer_step_pre_hooks


def test_the_environment_names_run_server_and_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    environment = {
        "SPIKEGUARD_RUN": "r",
        "SPIKEGUARD_PROJECT": "p",
        "SPIKEGUARD_SERVER": "http://guard:8000/",
        "SPIKEGUARD_TOKEN_FILE": str(tmp_path / "token"),
        "SPIKEGUARD_SEND_INTERVAL": "0.25",
    }
    found = read_connection(None, None, None, None, environment)
    assert (str(found.run), found.server, found.token) == ("p/r", "http://guard:8000", "secret")
    assert with_environment(spikeguard.Settings(), environment).send_interval_s == 0.25
    with pytest.raises(spikeguard.AttachError, match="SPIKEGUARD_TOKEN_FILE"):
        read_connection("r", None, None, None, {"SPIKEGUARD_TOKEN_FILE": "/nowhere"})


@pytest.mark.parametrize("content", [b"secret-1\n# of the job", b"\xff\xfes", "секрет".encode()])
def test_a_token_that_no_header_takes_is_refused_and_not_repeated(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "token").write_bytes(content)
    environment = {"SPIKEGUARD_TOKEN_FILE": str(tmp_path / "token")}
    with pytest.raises(spikeguard.AttachError, match="token") as refused:
        read_connection("r", None, None, None, environment)
    assert "secret" not in str(refused.value)


PLAIN = [
    ("http://spikeguard.example:8000", True),
    ("http://10.0.0.7:8000", True),
    ("http://server:8000", True),
    ("http://[fe80::1%eth0]:8000", True),
    ("https://spikeguard.example", False),
    ("http://localhost:1", False),
    ("http://127.8.0.1:1", False),
    ("http://[::1]:1", False),
]


@pytest.mark.parametrize(("address", "warned"), PLAIN)
def test_plain_http_to_another_machine_is_warned_of_once_and_can_be_allowed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, address: str, warned: bool
) -> None:
    for allowed in (False, True):
        caplog.clear()
        settings = replace(FAST, allow_plain_http=allowed, flush_s=0.0)
        Job(tmp_path, server=address, settings=settings).guard.finish()
        said = [r.getMessage() for r in caplog.records if "plain http" in r.getMessage()]
        assert len(said) == (warned and not allowed)
        assert all("Use https, or a tunnel" in line for line in said)


def test_without_a_server_it_says_so_once_and_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPIKEGUARD_SERVER", raising=False)
    with caplog.at_level(logging.WARNING, "spikeguard"):
        guard = spikeguard.attach(MODEL, OPTIMIZER, run="test", directory=tmp_path)
        for _ in range(5):
            guard.loss(MODEL(torch.ones(1, 2)).sum()).backward()
            OPTIMIZER.step()
            guard.step()
        guard.finish()
    assert [r.message for r in caplog.records if "no server" in r.message] == [
        "no server: set SPIKEGUARD_SERVER to have run test watched. What it measured is in "
        f"{tmp_path}: look at it with spikeguard replay, upload it with spikeguard sync"
    ]
    assert guard.steps == 5
    assert guard.faults == {}


@pytest.mark.parametrize("trouble", ["no locks", "a file in the way"])
def test_an_outbox_that_cannot_be_locked_or_written_is_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    """As on Lustre or NFS without locks: rank 0 attaches like the others, and all arrives."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    if trouble == "no locks":
        monkeypatch.setattr(fcntl, "flock", no_locks)
    else:
        (tmp_path / "guard").mkdir()
        (tmp_path / "guard/outbox").write_text("a file is in the way")
    with served(Wire()) as wire:
        job = Job(tmp_path, server=wire.url).train_to(20)
        job.guard.finish()
    assert sorted(step for _, step in wire.column("loss")) == list(range(1, 21))
    assert job.guard.faults == {"outbox": 1}


@pytest.mark.parametrize(
    "links",
    [
        {"x": "javascript:alert(1)"},
        {"x": "file:///etc/passwd"},
        {"x": "https://"},
        {"x": "https://a b/"},
        {"x": 'https://a/"onclick="x'},
        {"x": "https://ada:secret@a/"},
        {"x": f"https://a/{'y' * 2000}"},
        {"<b>": "https://a/"},
        {"": "https://a/"},
        {str(n): "https://a/" for n in range(9)},
        {"x": 7},
    ],
)
def test_what_no_page_could_show_is_refused_by_name(tmp_path: Path, links: Any) -> None:
    with pytest.raises(AttachError, match="links"):
        Job(tmp_path, links=links)
    if all(isinstance(address, str) for address in links.values()):
        with pytest.raises(ProtocolError, match="links"):
            AttemptStarted(None, 1, (), "0.1.0", links=links)


class Silent:
    """Has a state that it does not show."""

    def state_dict(self) -> dict[str, Any]:
        raise NotImplementedError("later")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError(f"attach() loaded {state}")


class Closing:
    """An adapter as loops write it: its methods reach live objects through a closure."""

    def __init__(self, live: dict[str, Any]) -> None:
        self.state_dict: Callable[[], dict[str, Any]] = lambda: dict(live)
        self.load_state_dict: Callable[[Any], None] = live.update


def job() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


@pytest.mark.parametrize("argument", ["scheduler", "state"])
def test_what_does_not_show_its_state_is_refused(argument: str, tmp_path: Path) -> None:
    model, optimizer = job()
    more: dict[str, Any] = {argument: [Silent()] if argument == "state" else Silent()}
    with pytest.raises(AttachError, match=r"Silent.state_dict\(\) raises") as refused:
        attach(model, optimizer, run="test", directory=tmp_path, **more)
    assert refused.value.argument == argument


def held(value: Any, found: dict[int, Any]) -> dict[int, Any]:
    """By identity: every object that can be reached, and what it holds.

    Without hooks and the function `step`, by which a guard watches until it finishes.
    """
    if id(value) in found or isinstance(value, type):
        return found
    inside: Mapping[Any, Any] = {}
    if isinstance(value, Tensor):
        found[id(value)] = (value, value.detach().clone().reshape(-1).tolist())
    elif isinstance(value, dict):
        inside = value
    elif isinstance(value, list | tuple | set):
        inside = dict(enumerate(value))
    elif callable(value) and hasattr(value, "__code__"):
        inside = {**getclosurevars(value).nonlocals, "self": getattr(value, "__self__", None)}
    elif hasattr(value, "__dict__"):
        inside = vars(value)
    else:
        found[id(value)] = (value, repr(value))
    watched = {k for k, v in inside.items() if "hook" in str(k) or (k == "step" and callable(v))}
    inside = {k: v for k, v in inside.items() if k not in watched}
    if inside or id(value) not in found:
        # `value` is kept, so that its identity is nobody else's
        found[id(value)] = (value, [(str(k), id(v)) for k, v in inside.items()])
    for each in inside.values():
        held(each, found)
    return found


def sam(parameters: Any) -> torch.optim.Optimizer:
    return Sam(parameters, torch.optim.SGD, lr=0.1, momentum=0.9)


WRAPPERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sam": sam,
    "lookahead": lambda parameters: Lookahead(torch.optim.AdamW(parameters, lr=1e-2)),
    "lookahead of sam": lambda parameters: Lookahead(sam(parameters)),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
}


@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("stepped", [False, True])
def test_every_live_object_is_the_same_with_the_same_content(
    kind: str, stepped: bool, tmp_path: Path
) -> None:
    """Optimizers that hold others, a schedule, a scaler, an adapter that closes over live state."""
    model, _ = job()
    optimizer = WRAPPERS[kind](model.parameters())
    if stepped:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    state = [Closing({"warm_up": True}), torch.amp.GradScaler("cpu", init_scale=64.0)]
    roots, step = [model, optimizer, schedule, state], vars(optimizer).get("step")
    before, numbers = held(roots, {}), torch.get_rng_state()
    guard = attach(
        model, optimizer, run="test", directory=tmp_path, scheduler=schedule, state=state
    )
    after = held(roots, {})
    guard.finish()
    assert torch.equal(torch.get_rng_state(), numbers)
    assert before.keys() == after.keys()
    assert [c for _, c in after.values()] == [c for _, c in before.values()]
    assert vars(optimizer).get("step") is step
