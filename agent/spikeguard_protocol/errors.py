"""What is wrong with a message, said so that its sender can mend it."""

from __future__ import annotations


class ProtocolError(ValueError):
    """A message broke the protocol. Names the field, the limit it broke and the remedy."""

    def __init__(self, field: str, limit: str, remedy: str) -> None:
        super().__init__(f"{field}: {limit}. {remedy}")
        self.field = field
        self.limit = limit
        self.remedy = remedy


class UnknownVersion(ProtocolError):
    """A message was written in a version that this side does not speak."""
