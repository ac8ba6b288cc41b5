"""Changes the state of runs and attempts, each with an entry in the audit.

Nobody else writes a run's state, or that an attempt began, ended, was lost or came back. What did
not change is not written again.
"""

from __future__ import annotations

from spikeguard_server.ingest.message_context import Intake
from spikeguard_server.store import audit
from spikeguard_server.store.runs import LIVE, AttemptRow


def stands(intake: Intake, state: str, reason: str) -> None:
    """The run is live, silent or ended from now on."""
    before, intake.run.state = intake.run.state, state
    if before != state:
        _append(intake, state, before, state, reason)


def sends(intake: Intake) -> None:
    """The attempt that the run is followed by sent something."""
    silent_s = (intake.now - intake.run.last_message_at).total_seconds()
    stands(
        intake, LIVE, f"attempt {intake.attempt.number} sends, after {silent_s:.0f} s of silence"
    )


def began(intake: Intake) -> None:
    """The attempt registered."""
    _append(intake, "attempt.started", None, _name(intake.attempt.number), "its first message came")


def follow_attempt(intake: Intake, reason: str) -> None:
    """The run is followed by this attempt from now on."""
    run, before = intake.run, intake.run.current_attempt
    run.current_attempt = intake.attempt.number
    if before is not None:
        _append(intake, "attempt.followed", _name(before), _name(run.current_attempt), reason)


def ended(intake: Intake, reason: str) -> None:
    """The attempt said that it ended, for this reason of its own; the first time counts."""
    attempt = intake.attempt
    if attempt.ended_at is None:
        _append(intake, "attempt.ended", _name(attempt.number), None, reason)
    attempt.ended_at, attempt.end_reason = intake.now, reason


def lost(intake: Intake, attempt: AttemptRow, silent_s: float) -> None:
    """It has been silent for so long that what it held in memory and in hand counts as gone."""
    attempt.lost = True
    reason = f"no message for {silent_s:.0f} s"
    _append(intake, "attempt.lost", _name(attempt.number), None, reason)


def found(intake: Intake) -> None:
    """It was lost, and is back."""
    _append(intake, "attempt.found", None, _name(intake.attempt.number), "it sends again")
    intake.attempt.lost = False


def _name(attempt: int) -> str:
    return f"attempt {attempt}"


def _append(
    intake: Intake, action: str, before: str | None, after: str | None, reason: str
) -> None:
    audit.append(
        intake.connection, intake.run_id, actor=audit.SERVER, action=action,
        subject=str(intake.run.id), before=before, after=after, reason=reason,
    )  # fmt: skip
