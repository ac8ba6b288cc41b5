"""The keys that this job's operator gave it to check orders with.

Invariants
- Keys that cannot be read refuse every order: a file that is gone must not switch the check off.
- A refusal names the keys by their hashes, and the setting.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spikeguard.settings import Settings
from spikeguard_protocol import CommandId, Order, RunId
from spikeguard_protocol.order_signature import OrderKey, read_order_keys, signature_problem

NAME = "Settings.order_keys_file, SPIKEGUARD_ORDER_KEYS_FILE"
TOLD = "order_keys"  # what the server calls them, and who approves


@dataclass(frozen=True, slots=True)
class OrderKeys:
    """What orders are checked with; `asked` False: with nothing."""

    asked: bool
    keys: tuple[OrderKey, ...] = ()
    problem: str = ""  # why there are none though they were asked for

    def refusal(self, order: Order, run: RunId, now_s: float) -> str | None:
        """Why `run` does not carry `order` out; `now_s`: seconds since the epoch."""
        if not self.asked:
            return None
        if self.problem:
            return f"this job takes signed orders only, and {self.problem} ({NAME})"
        problem = signature_problem(self.keys, order, order.signature, now_s)
        if problem is None:
            return _foreign(order, run)
        names = ", ".join(key.name for key in self.keys)
        return f"{problem}; this job takes orders that are signed with key {names} ({NAME})"

    def told(self) -> dict[str, str]:
        """For the attempt's own description: which keys, not what they are."""
        if not self.asked:
            return {}
        return {TOLD: ",".join(key.name for key in self.keys) or "unreadable"}


def _foreign(order: Order, run: RunId) -> str | None:
    """Who signs sees the command's name and does not know a run by its attempts' ids."""
    if CommandId.parse(order.command).incident.run == run:
        return None
    return f"it was signed as a command of another run; this one is {run}"


def read_keys(settings: Settings) -> OrderKeys:
    """The keys of the file that `settings` name; never raises."""
    path = settings.order_keys_file
    if not path:
        return OrderKeys(asked=False)
    try:
        return OrderKeys(True, read_order_keys(Path(path).read_text()))
    except OSError as error:
        return OrderKeys(True, problem=f"its keys cannot be read: {error.strerror}")
    except ValueError as error:  # no text, or no key
        said = "it is no text" if isinstance(error, UnicodeDecodeError) else str(error)
        return OrderKeys(True, problem=f"its keys cannot be read: {said}")
