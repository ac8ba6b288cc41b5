"""Which `pip install` brings an extra to this copy of spikeguard."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from typing import Any
from urllib.parse import unquote, urlsplit


def install_command(extra: str) -> str:
    """The command that adds `extra`, from where this copy was installed.

    A copy that came from a file, a folder or a repository names that: an index need not have
    spikeguard, or has somebody else's under its name.
    """
    origin = distribution("spikeguard").read_text("direct_url.json")
    return f"pip install {requirement(extra, origin)}"


def requirement(extra: str, direct_url: str | None) -> str:
    """What pip is given, quoted for a shell. `direct_url`: as PEP 610 writes it; None: an index."""
    if direct_url is None:
        return f"'spikeguard[{extra}]'"
    origin: dict[str, Any] = json.loads(direct_url)
    if origin.get("dir_info", {}).get("editable"):
        return f"--editable '{unquote(urlsplit(origin['url']).path)}[{extra}]'"
    address = origin["url"]
    if version_control := origin.get("vcs_info"):
        address = f"{version_control['vcs']}+{address}@{version_control['commit_id']}"
    if folder := origin.get("subdirectory"):
        address += f"#subdirectory={folder}"
    return f"'spikeguard[{extra}] @ {address}'"
