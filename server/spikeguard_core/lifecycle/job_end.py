"""The hint to look at the job of a run that sends nothing any more, unless it ended on purpose."""

from __future__ import annotations

ON_PURPOSE = frozenset({"finished", "stopped"})  # reasons with which an attempt ends as it should


def look_at_job(attempt: int | None, reason: str | None) -> str | None:
    """The advice as a sentence; None where nobody has to look. `reason`: that the attempt gave for
    its end; None: it gave none."""
    if attempt is None or reason in ON_PURPOSE:
        return None
    if reason is not None:
        return f"Look at the job: attempt {attempt} ended: {reason}."
    return (
        f"Look at the job: attempt {attempt} sent nothing any more and never said why. Its log, "
        "its node and its scheduler know."
    )
