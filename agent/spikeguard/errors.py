"""Everything this package raises on purpose.

    SpikeguardError
    ├── AttachError (ValueError)   an argument of attach() cannot work; nothing has begun
    └── ResumeError                checkpoints exist but none could be restored; nothing has begun
    AttemptAborted (SystemExit)    a command was half applied; the attempt has to end
    Stopped (SystemExit)           a stop was ordered, and the loop has no end of its own
    RestoreFailedAgain (SystemExit) two starts in a row could not restore a state: do not repeat
    RollbackByRestart (SystemExit) a rollback was ordered that the next start carries out

An error names who is at fault and what to do next.
"""

from __future__ import annotations

EXIT_HALF_APPLIED = 75  # EX_TEMPFAIL: start me again, from a state that is whole
EXIT_CANNOT_RESTORE = 78  # EX_CONFIG: a person has to look; another start ends in the same way
EXIT_ROLL_BACK = 76  # start me again: the journal says from which checkpoint, and without what


class SpikeguardError(Exception):
    """Root of the errors raised before the loop begins."""


class AttachError(SpikeguardError, ValueError):
    """An argument of `attach()` cannot work."""

    def __init__(self, argument: str, problem: str, remedy: str) -> None:
        name, _, field = argument.partition(".")  # ranks.pipeline: a field of Ranks
        given = f"{name}={name.title()}({field}=...)" if field else f"{name}=..."
        super().__init__(f"attach({given}): {problem}. {remedy}")
        self.argument = argument
        self.problem = problem
        self.remedy = remedy


class ResumeError(SpikeguardError):
    """Checkpoints exist but none could be restored; starting from zero would hide that."""


class _Ended(SystemExit):
    """The guard ends the attempt: not an `Exception`, so that no loop's `except` trains on."""

    status = EXIT_HALF_APPLIED  # of the process
    words = "spikeguard ended the attempt: {reason}"

    def __init__(self, reason: str) -> None:
        super().__init__(self.status)
        self.reason = reason

    def __str__(self) -> str:
        return self.words.format(reason=self.reason)


class AttemptAborted(_Ended):
    """A command was half applied: ranks may hold different weights, so the attempt ends.

    The process ends with `EXIT_HALF_APPLIED`; the next start restores a whole state and keeps the
    journal.
    """


class Stopped(_Ended):
    """A stop was carried out, and the loop does not end with its data. Status 0: as ordered."""

    status = 0


class RestoreFailedAgain(_Ended):
    """Restoring a checkpoint failed half-way, as it did at the start before.

    The process ends with `EXIT_CANNOT_RESTORE`, so that a launcher which repeats status 75 stops.
    """

    status = EXIT_CANNOT_RESTORE
    words = (
        "spikeguard ended the attempt, as the start before it: {reason}. Fix that, or move this "
        "checkpoint away to resume from the one before it"
    )


class RollbackByRestart(_Ended):
    """A framework owns the loop, so the next start carries the rollback out.

    Raised on all ranks once the journal holds the order; the process ends with `EXIT_ROLL_BACK`.
    """

    status = EXIT_ROLL_BACK
