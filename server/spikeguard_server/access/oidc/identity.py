"""The person that a provider's token is about, and the error where it cannot be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spikeguard_server.errors import Forbidden


@dataclass(frozen=True, slots=True)
class Identity:
    """Whom a token is about."""

    subject: str
    claims: Mapping[str, Any]
    signed_in_s: float | None  # how long ago; None where the provider does not say


def not_believed(why: str) -> Forbidden:
    """The refusal of what the provider is said to have said."""
    return Forbidden(
        f"The identity provider's answer is not believed: {why}",
        "Sign in again; if that does not help, ask an admin to look at the server's and the "
        "provider's clocks and settings",
    )
