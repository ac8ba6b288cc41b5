"""One thread a process: the runs are small, and their bits must not depend on the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SERVER", "TOKEN", "TOKEN_FILE", "RUN", "PROJECT"):
        monkeypatch.delenv(f"SPIKEGUARD_{name}", raising=False)
