"""The random numbers of a job: the global generators of python, torch, its GPUs and numpy."""

from __future__ import annotations

import importlib.util
import random
import sys
from functools import cache

import torch

from spikeguard.state.targets import Tree


def random_state() -> Tree:
    """All generators, those of GPUs by their place among this rank's: its own first.

    A generator of a GPU that another rank computes on is that rank's to keep.
    """
    tree: Tree = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        tree["cuda"] = [torch.cuda.get_rng_state(gpu) for gpu in _own_gpus()]
    if "numpy" in sys.modules:
        tree["numpy"] = sys.modules["numpy"].random.get_state()
    return tree


def random_refusal(tree: Tree) -> str | None:
    """Why the generators cannot be put back; None if they can."""
    if "cuda" in tree and not torch.cuda.is_available():
        return "it holds the random numbers of a GPU, and there is none here"
    if "numpy" in tree and importlib.util.find_spec("numpy") is None:
        return "it holds the random numbers of numpy, which is not installed here"
    return None


def restore_random_state(tree: Tree) -> None:
    """Put the generators back. A restart may compute on fewer GPUs, or on others."""
    random.setstate(tree["python"])
    torch.set_rng_state(tree["torch"])
    if "cuda" in tree:
        for gpu, state in zip(_own_gpus(), tree["cuda"], strict=False):
            torch.cuda.set_rng_state(state, gpu)
    if "numpy" in tree:
        import numpy as np

        np.random.set_state(tree["numpy"])


def forget_gpus() -> None:
    """Look again which GPUs this process computes on: once the model is where it will train."""
    _own_gpus.cache_clear()


@cache
def _own_gpus() -> tuple[int, ...]:
    """The current one, then others that this process has memory on."""
    current = torch.cuda.current_device()
    others = (gpu for gpu in range(torch.cuda.device_count()) if gpu != current)
    return (current, *filter(torch.cuda.memory_allocated, others))
