"""Where the job's trackers show its run: told or found, sent to the server, never in the way."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spikeguard import AttachError
from spikeguard.uplink.run_links import LOG_DIRECTORY_FACT, log_directory, run_links
from spikeguard_protocol import AttemptStarted, ProtocolError
from tests.agent.job import Job

RUN = "https://wandb.ai/acme/gpt/runs/8f3k2x1q"


def mlflow(uri: str) -> Any:
    active = SimpleNamespace(info=SimpleNamespace(experiment_id="7", run_id="a1"))
    return SimpleNamespace(active_run=lambda: active, get_tracking_uri=lambda: uri)


def raising() -> Any:
    raise RuntimeError("of any release")


@pytest.mark.parametrize(
    ("environment", "modules", "found"),
    [
        ({}, {}, {}),
        ({}, {"wandb": SimpleNamespace(run=SimpleNamespace(url=RUN))}, {"Weights & Biases": RUN}),
        ({}, {"wandb": SimpleNamespace(run=None)}, {}),
        (
            {"WANDB_ENTITY": "acme", "WANDB_PROJECT": "gpt", "WANDB_RUN_ID": "8f3k2x1q"},
            {},
            {"Weights & Biases": RUN},
        ),
        (
            {
                "WANDB_ENTITY": "a", "WANDB_PROJECT": "p", "WANDB_RUN_ID": "r",
                "WANDB_MODE": "offline",
            },
            {},
            {},
        ),
        (
            {},
            {"mlflow": mlflow("https://ada:secret@ml.example/")},
            {"MLflow": "https://ml.example/#/experiments/7/runs/a1"},
        ),
        ({}, {"mlflow": mlflow("file:///runs/mlruns")}, {}),
        ({}, {"mlflow": SimpleNamespace(active_run=raising)}, {}),
    ],
)  # fmt: skip
def test_a_run_is_found_where_its_tracker_is_at_hand(
    environment: dict[str, str], modules: dict[str, Any], found: dict[str, str]
) -> None:
    assert run_links(None, environment, modules) == found


def test_what_is_told_comes_before_what_is_found() -> None:
    told = {"Weights & Biases": "https://wandb.example/mine"}
    wandb = {"wandb": SimpleNamespace(run=SimpleNamespace(url=RUN))}
    assert run_links(told, {}, wandb) == told


def test_tensorboards_folder_is_a_fact_of_the_record() -> None:
    writer = SimpleNamespace(log_directory="/runs/tb")
    assert log_directory(writer, {}) == {LOG_DIRECTORY_FACT: "/runs/tb"}
    assert log_directory(None, {"TENSORBOARD_LOGGING_DIR": "tb"}) == {LOG_DIRECTORY_FACT: "tb"}
    assert log_directory(None, {}) == {}


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
