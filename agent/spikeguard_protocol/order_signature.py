"""Signatures of orders: a shared key that the server need not hold.

Whoever approves signs what the job will be asked to do; the job checks it with the keys that its
operator gave it. What lies between, the server and its database included, can hold an order back
and cannot make one, change one or give it to another attempt.

Invariants
- HMAC-SHA-256 over one canonical text of everything that an order does: command, attempt, action,
  its end in steps, its end in time. A signature is good for that order alone.
- No key appears in what is returned, raised or shown: keys are named by eight digits of their hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from spikeguard_protocol.encoding import to_json
from spikeguard_protocol.orders import Action, Order

SLACK_S: Final = 300.0  # by which the clocks of who signs and who checks may differ
KEYS_MOST: Final = 4  # at once: the one in use, the next one, and some room
KEY_WORDS: Final = "64 hexadecimal digits a line, as `openssl rand -hex 32` writes them"
_KEY: Final = re.compile(r"[0-9a-fA-F]{64}")
_SIGNATURE: Final = re.compile(r"([0-9a-f]{8})\.([0-9]{1,12})\.([0-9a-f]{64})")
_PURPOSE: Final = "spikeguard order 1"


@dataclass(frozen=True, slots=True)
class OrderKey:
    """One shared key."""

    secret: bytes = field(repr=False)

    @property
    def name(self) -> str:
        """What it is called where it may be seen."""
        return hashlib.sha256(self.secret).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Signed:
    """What a signature speaks of."""

    command: str  # public id
    attempt: str
    action: Action
    expires_at_step: int | None


def read_order_keys(text: str) -> tuple[OrderKey, ...]:
    """The keys of a file; raise ValueError with what is wrong, never with what stands there."""
    lines = [(n, line.strip()) for n, line in enumerate(text.splitlines(), 1)]
    kept = [(n, line) for n, line in lines if line and not line.startswith("#")]
    for number, line in kept:
        if not _KEY.fullmatch(line):
            raise ValueError(f"line {number} is no key: a key is {KEY_WORDS}")
    if not 1 <= len(kept) <= KEYS_MOST:
        raise ValueError(f"it holds {len(kept)} keys; it takes 1 to {KEYS_MOST}, {KEY_WORDS}")
    return tuple(OrderKey(bytes.fromhex(line)) for _, line in kept)


def sign(key: OrderKey, signed: Signed, expires_at_s: float) -> str:
    """The signature of an order that is void after `expires_at_s`, seconds since the epoch."""
    until = int(expires_at_s)
    return f"{key.name}.{until}.{_mac(key, signed, until)}"


def is_signature(text: str) -> bool:
    """Whether `text` has the form of one."""
    return _SIGNATURE.fullmatch(text) is not None


def signature_problem(
    keys: Sequence[OrderKey], order: Order, signature: str | None, now_s: float
) -> str | None:
    """Why `order` is not what somebody with one of `keys` signed; `now_s`: since the epoch."""
    if signature is None:
        return "it is not signed"
    parts = _SIGNATURE.fullmatch(signature)
    if parts is None:
        return "its signature is none that this release knows"
    key = next((key for key in keys if key.name == parts[1]), None)
    if key is None:
        return f"it is signed with key {parts[1]}"
    signed = Signed(order.command, order.attempt, order.action, order.expires_at_step)
    if not hmac.compare_digest(parts[3], _mac(key, signed, int(parts[2]))):
        return f"its signature with key {parts[1]} is of another order"
    if now_s > int(parts[2]) + SLACK_S:
        return f"its signature was good until {_utc(int(parts[2]))}, and it is {_utc(now_s)} here"
    return None


def _mac(key: OrderKey, signed: Signed, until: int) -> str:
    plain = [
        _PURPOSE, signed.command, signed.attempt, to_json(signed.action), signed.expires_at_step,
        until,
    ]  # fmt: skip
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hmac.new(key.secret, text.encode(), hashlib.sha256).hexdigest()


def _utc(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{seconds:.0f} s"
