"""Bodies about the kill switch."""

from __future__ import annotations

from pydantic import Field

from spikeguard_core.audit.changes import MAX_REASON
from spikeguard_protocol.identity import NAME_PATTERN
from spikeguard_server.http.bodies.run_shapes import Shape

_NAME = f"^{NAME_PATTERN.pattern}$"


class SwitchWanted(Shape):
    """Throw or lift the kill switch of a project, for a reason that the record keeps."""

    project: str = Field(pattern=_NAME)
    reason: str = Field(min_length=1, max_length=MAX_REASON)
