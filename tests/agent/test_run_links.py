"""Where the job's trackers show its run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spikeguard import AttachError
from spikeguard_protocol import AttemptStarted, ProtocolError
from tests.agent.job import Job


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
