"""`spikeguard doctor CHECKPOINT`: faults in files that real programs write."""

from __future__ import annotations

import copy
import json
import os
import pickle
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import save

from spikeguard.doctor.command import doctor
from spikeguard_cli.command import CommandFailed

TOKENS = 1_200
Tree = dict[str, Any]
Save = Callable[[Tree, Path], Path]


def tree() -> Tree:
    """A model that was trained a little, with its optimizer, a mask and a rotary table."""
    torch.manual_seed(5)
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(TOKENS, 16), "norm": nn.LayerNorm(16), "up": nn.Linear(16, 32)}
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        hidden = model["norm"](model["embedding"](torch.arange(TOKENS)))
        model["up"](hidden).square().mean().backward()
        optimizer.step()
    mask = torch.triu(torch.full((8, 8), -torch.inf), 1)
    tables = {"attention.mask": mask, "rope.cos": torch.ones(8, 4)}
    return {"model": model.state_dict() | tables, "optimizer": optimizer.state_dict(), "step": 2}


def flat(given: Tree) -> dict[str, torch.Tensor]:
    """Of the model alone, as a program of inference keeps it."""
    return {name: tensor.contiguous() for name, tensor in given["model"].items()}


def as_pt(given: Tree, folder: Path) -> Path:
    torch.save(given, folder / "checkpoint.pt")
    return folder / "checkpoint.pt"


def as_safetensors(given: Tree, folder: Path) -> Path:
    save_file(flat(given), folder / "model.safetensors")
    return folder


def as_dcp(given: Tree, folder: Path) -> Path:
    save(copy.deepcopy(given), checkpoint_id=folder / "dcp", no_dist=True)
    return folder / "dcp"


SAVES = pytest.mark.parametrize("save", [as_pt, as_safetensors, as_dcp])


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, str]]]:
    def run(path: Path) -> tuple[int, dict[str, str]]:
        status = doctor(Namespace(checkpoint=str(path), json=True))
        return status, {
            each["name"]: each["evidence"] for each in json.loads(capsys.readouterr().out)
        }

    return run


@SAVES
def test_a_sound_checkpoint_shows_nothing(save: Save, tmp_path: Path, said: Any) -> None:
    assert said(save(tree(), tmp_path)) == (0, {})


@SAVES
def test_each_fault_is_found_and_named(save: Save, tmp_path: Path, said: Any) -> None:
    given = tree()
    weights = given["model"]
    weights["up.bias"][3] = torch.nan
    status, found = said(save(given, tmp_path))
    assert status == 1
    assert found.keys() == {"non_finite_values"}
    assert "up.bias (1 of 32)" in found["non_finite_values"]


@pytest.mark.parametrize("save", [as_pt, as_dcp])
def test_moments_that_cannot_be_are_told(save: Save, tmp_path: Path, said: Any) -> None:
    given = tree()
    state = given["optimizer"]["state"]
    state[0]["exp_avg_sq"][0, 0] = -1.0
    status, found = said(save(given, tmp_path))
    assert status == 1
    assert found.keys() == {"negative_second_moment"}


class Harm:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize("place", ["checkpoint.pt", "dcp/.metadata"])
def test_nothing_in_a_checkpoint_is_executed(place: str, tmp_path: Path, said: Any) -> None:
    file = tmp_path / place
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(pickle.dumps(Harm()))
    with pytest.raises(CommandFailed, match="cannot be read"):
        said(file if file.suffix == ".pt" else file.parent)
    assert not Path("harm").exists()


@pytest.mark.parametrize("place", ["missing.pt", "empty", "cut.pt", "cut.safetensors"])
def test_what_cannot_be_read_is_said_in_a_line(place: str, tmp_path: Path, said: Any) -> None:
    path = tmp_path / place
    if place == "empty":
        path.mkdir()
    elif place == "cut.safetensors":
        save_file(flat(tree()), path)
        path.write_bytes(path.read_bytes()[:900])
    elif place == "cut.pt":
        torch.save(tree(), path)
        path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(CommandFailed, match=place):
        said(path)
