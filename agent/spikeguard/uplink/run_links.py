"""Where the job's own trackers show its run: told to `attach()`, or found.

An address that is found leaves the job without what may be secret in it: user, password and query.

Law: a tracker is asked only where the job has imported it already, and only for what it holds in
memory: nothing is imported, and nothing waits on a network. What is found and is no good link is
left out; nothing raises.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlsplit, urlunsplit

from spikeguard.errors import AttachError
from spikeguard_protocol import ProtocolError
from spikeguard_protocol.links import MAX_LINKS, check_links

WANDB, MLFLOW = "Weights & Biases", "MLflow"
LOG_DIRECTORY: Final = "TENSORBOARD_LOGGING_DIR"  # as the Hugging Face Trainer reads it
LOG_DIRECTORY_FACT: Final = "tensorboard_log_dir"


def check_told(links: Mapping[str, str] | None) -> None:
    """Raise `AttachError` for a link of the user's that no page could show."""
    for name, address in (links or {}).items():
        if not isinstance(name, str) or not isinstance(address, str):
            raise AttachError(
                "links", f"it has {name!r}: {address!r:.80}", "Give names and addresses"
            )
    try:
        check_links(links or {})
    except ProtocolError as error:
        raise AttachError(
            "links", str(error), "Give at most 8 names with http(s) addresses"
        ) from None


def run_links(
    told: Mapping[str, str] | None, modules: Mapping[str, Any] = sys.modules
) -> dict[str, str]:
    """Name to address: what was told, and the run of each tracker that is active here."""
    links = dict(told or {})
    for find, name in ((_wandb, WANDB), (_mlflow, MLFLOW)):
        if name in links or len(links) >= MAX_LINKS:
            continue
        try:
            address = find(modules) or ""
            check_links({name: address})
        except Exception:  # a tracker of any release: it may raise anything
            continue
        links[name] = address
    return links


def log_directory(forward: Any, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """TensorBoard's folder as a fact of the record: it has no address of its own."""
    folder = getattr(forward, "log_directory", None) or environment.get(LOG_DIRECTORY)
    return {LOG_DIRECTORY_FACT: _without_secrets(str(folder))[:500]} if folder else {}


def _wandb(modules: Mapping[str, Any]) -> str | None:
    run = getattr(modules.get("wandb"), "run", None)
    return _without_secrets(str(run.url)) if run is not None and run.url else None


def _mlflow(modules: Mapping[str, Any]) -> str | None:
    mlflow = modules.get("mlflow")
    active = mlflow.active_run() if mlflow is not None else None
    if mlflow is None or active is None:
        return None
    experiment, run = (
        quote(str(n), safe="") for n in (active.info.experiment_id, active.info.run_id)
    )
    uri = _without_secrets(mlflow.get_tracking_uri()).rstrip("/")
    return f"{uri}/#/experiments/{experiment}/runs/{run}"


def _without_secrets(address: str) -> str:
    """Scheme, host and path; of a folder's path, all of it."""
    if "://" not in address:
        return address
    parts = urlsplit(address)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
