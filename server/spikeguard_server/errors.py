"""Every error that the server raises for its callers, in one tree, each with a remedy.

A message tells what broke which limit, a remedy what to do next; neither carries a secret or
anything of the server's inside. `app` turns them into answers; nothing else writes error bodies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar


class ServiceError(Exception):
    """A request that is answered with an error. `extra` stands beside the message in the answer."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    headers: Mapping[str, str] = MappingProxyType({})  # of the answer

    def __init__(
        self, message: str, remedy: str, *, field: str | None = None, **extra: Any
    ) -> None:
        super().__init__(f"{message}. {remedy}")
        self.message = message
        self.remedy = remedy
        self.field = field
        self.extra = extra

    def body(self) -> dict[str, Any]:
        """The one shape of every error."""
        said = {"field": self.field, "message": self.message, "remedy": self.remedy}
        return {"error": {"code": self.code, **said, **self.extra}}


class Malformed(ServiceError):
    """The request is not what this call takes at all."""

    code, status = "malformed", 400


class VersionNotSpoken(ServiceError):
    """The message is written in a version that this server does not speak."""

    code, status = "version_not_spoken", 400


class NotSignedIn(ServiceError):
    """There is no token, or one that is unknown, expired or revoked."""

    code, status = "not_signed_in", 401
    headers = MappingProxyType({"WWW-Authenticate": "Bearer"})


class Forbidden(ServiceError):
    """The token is good, and does not reach this far."""

    code, status = "forbidden", 403


class NoPerson(Forbidden):
    """A decision needs a person's name behind it, and this token carries none."""

    code = "no_person"

    def __init__(self) -> None:
        super().__init__(
            "This token carries no person's name, and every decision carries one",
            "Run `spikeguard login`, or open /login in a browser",
        )


class NameNotProven(Forbidden):
    """Only a token or a proxy that names the person may decide here."""

    code = "name_not_proven"

    def __init__(self) -> None:
        super().__init__(
            "Here a name that was only typed decides nothing (SPIKEGUARD_DECISIONS_BY=named)",
            "Ask an admin for a token in your name: spikeguard token create --person NAME",
        )


class SignInAgain(Forbidden):
    """The sign-in is too old for this call."""

    code = "sign_in_again"

    def __init__(self, age_s: float, most_s: float) -> None:
        super().__init__(
            f"This needs a sign-in of the last {most_s:g} s, and yours is {age_s:.0f} s old",
            "Sign in again (`spikeguard login`, or /login), then repeat it",
            limit=most_s,
        )


class NotFound(ServiceError):
    """There is no such thing, or not for this token."""

    code, status = "not_found", 404


class MethodNotAllowed(ServiceError):
    """There is such a path, and it does not take this method."""

    code, status = "method_not_allowed", 405

    def __init__(self, allowed: Sequence[str]) -> None:
        super().__init__(f"This path takes {' and '.join(allowed)} alone", "Send one of these")
        self.headers = {"Allow": ", ".join(allowed)}


class Conflict(ServiceError):
    """Something else happened first."""

    code, status = "conflict", 409


class SequenceGap(Conflict):
    """A message is ahead of the one that the server waits for."""

    code = "sequence_gap"

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(
            f"The next message of this attempt is {expected}, and this is {got}",
            f"Send from {expected} on, or declare a Gap for what is lost",
            field="sequence",
            expected=expected,
        )


class RevisionChanged(Conflict):
    """The proposal changed since it was shown. `current` is the command as it stands now."""

    code = "revision_changed"

    def __init__(self, current: Any) -> None:
        super().__init__(
            "The proposal changed since you saw it",
            "Look at it again, then decide on its current revision",
            field="revision",
            current=current,
        )


class WrongState(Conflict):
    """The command or incident is past the state that this needs."""

    code = "illegal_move"


class NotClosed(Conflict):
    """There is no post-mortem while an incident is open."""

    code = "not_closed"


class StillTraining(Conflict):
    """A run is not deleted while an attempt of it lives."""

    code = "still_training"

    def __init__(self, run: Any, attempt: int, silent_after_s: float) -> None:
        super().__init__(
            f"Attempt {attempt} of run {run} is alive",
            f"End the job first; an attempt that sends nothing for {silent_after_s:g} s counts as "
            "over",
            attempt=attempt,
        )


class TooLarge(ServiceError):
    """The body is larger than this call takes."""

    code, status = "too_large", 413

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The body is larger than {limit} bytes",
            "Send less at once",
            field="body",
            limit=limit,
        )


class Unprocessable(ServiceError):
    """A field breaks its limit."""

    code, status = "unprocessable", 422


class _Later(ServiceError):
    """Worth another try, after a wait."""

    def __init__(self, message: str, remedy: str, *, retry_after_s: int = 1, **extra: Any) -> None:
        super().__init__(message, remedy, **extra)
        self.headers = {"Retry-After": str(retry_after_s)}


class Busy(_Later):
    """More at once than this server takes."""

    code, status = "busy", 429


class InternalError(ServiceError):
    """Something is wrong with the server itself; its log says what."""

    code, status = "internal", 500

    def __init__(self) -> None:
        super().__init__(
            "The server failed at this", "Try again; if it stays so, look at the server's log"
        )


class Unready(_Later):
    """The server is starting, or its database cannot be reached."""

    code, status = "unready", 503


class ProviderUnready(_Later):
    """The identity provider cannot be asked just now; tokens work as ever."""

    code, status = "provider_unready", 503
