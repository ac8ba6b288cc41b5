"""What a person says about a log, so that it need not be guessed.

Law: pure; what is asked for and not there is refused, never guessed instead.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from spikeguard_cli.command import CommandFailed


class ReplayFormat(StrEnum):
    """What a log was written as."""

    CSV = "CSV"
    JSONL = "JSONL"
    JSON_LIST = "JSON list"
    TRAINER_STATE = "Hugging Face trainer state"
    MEGATRON = "Megatron-LM log"
    TENSORBOARD = "TensorBoard events"
    MLFLOW = "MLflow metrics"

    @property
    def word(self) -> str:
        """As `--format` takes it."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True)
class LogOptions:
    """What was said; all of it may be left out."""

    form: ReplayFormat | None = None
    columns: Mapping[str, str] = field(default_factory=dict)  # our name -> the file's
    run: str | None = None  # of a file that holds several

    def check(self, path: Path, found: Collection[str]) -> None:
        """Refuse a column that is not in the file; raises `CommandFailed`."""
        for ours, name in self.columns.items():
            if name not in found:
                known = ", ".join(list(found)[:20]) or "nothing"
                raise CommandFailed(f"{path}: no `{name}` for {ours} (found {known}): name another")
