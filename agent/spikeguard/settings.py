"""What a user may choose, and where the connection's parts come from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from numbers import Real
from pathlib import Path
from typing import Any

from spikeguard.errors import AttachError
from spikeguard_protocol import DEFAULT_PROJECT, ProtocolError, RunId, Verb
from spikeguard_protocol.bearer import bearer
from spikeguard_protocol.findings import RULES
from spikeguard_protocol.plain_http import is_address
from spikeguard_protocol.variables import misspelt

GIB = 2**30
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Settings:
    """Cadences in steps, sizes in bytes, durations in seconds."""

    slow_signals_every: int = 10  # steps between param_norm, adam_v_norm, update_norm
    exact_update_bytes: int = GIB  # largest copy of the parameters for update_norm, a rank
    flight_recorder: int = 64  # measurements of norms by layer that are kept; 0: none
    batch_text: bool = True  # False: no text of a batch leaves the job
    replica_checksum_every: int = 100  # steps between comparisons of replicas; 0: never
    drop_non_finite: bool = True  # keep non-finite updates out of the weights
    skip_by_sync: bool = False  # also where the host then waits in each step
    emergency_drops: int = 0  # updates left out in a row that lower the rate; 0: never
    emergency_factor: float = 0.5  # what every learning rate is multiplied by then
    emergency_steps: int = 100  # how long; then it climbs back
    snapshot_every: int | None = None  # steps; 0: no snapshots; None: as snapshot_budget allows
    snapshot_budget: float = 0.005  # share of the time for snapshots; 0: every 20 steps
    snapshots: int = 5  # newest kept
    snapshot_bytes: int = 0  # host memory a rank, all snapshots; 0: half of what is free
    rollback_on_other_data: bool = False  # roll back though the loader gives other items
    send_interval_s: float = 1.0  # between two messages
    timeout_s: float = 5.0  # connecting, and each read of an answer
    backoff_s: float = 30.0  # longest pause between two tries
    outbox_bytes: int = 256 * MIB  # on disk; beyond it the oldest samples are dropped
    flush_s: float = 3.0  # finish() and SIGTERM wait no longer for the server
    watch_alone: bool = True  # without a server: detection in a thread, told in the log
    agreement_timeout_s: float = 0.0  # for the slowest rank; 0: as the job's collectives
    observe_only: bool = False  # no order is carried out; measurements are reported
    allowed_verbs: tuple[str, ...] = tuple(Verb)  # what may be ordered
    lr_factor_least: float = 0.05  # smallest factor of the learning rate
    lr_steps_most: int = 5_000  # how long one order lowers the learning rate
    apply_steps_most: int = 5_000  # how long one order switches a mitigation on
    skip_batches_most: int = 2_000  # positions that one order leaves out
    rollback_steps_most: int = 5_000  # steps that one rollback gives up
    rollbacks_a_day: int = 10  # in 24 hours, over all attempts of the run
    orders_a_day: int = 20  # the same for each other verb but watch
    orders_an_hour: int = 60  # orders that are answered, refused ones too
    silenced_findings: tuple[str, ...] = ()  # names of what the doctor does not tell
    allow_plain_http: bool = False  # no warning where http leads to another machine

    def __post_init__(self) -> None:
        for field in fields(self):
            given = getattr(self, field.name)
            object.__setattr__(self, field.name, _plain(given, field.default))
            _check(field.name, getattr(self, field.name), field.default)
        _check_emergency(self)


_RANGES: Mapping[str, tuple[float, float | None]] = {  # of those that have one besides 0 and more
    "slow_signals_every": (1, None),
    "snapshots": (1, None),
    "flight_recorder": (0, 200),
    "emergency_drops": (0, 10_000),
    "emergency_factor": (1e-6, 1.0),
    "emergency_steps": (1, None),
    "snapshot_budget": (0, 0.5),
    "lr_factor_least": (1e-6, 1.0),
    **dict.fromkeys(("lr_steps_most", "apply_steps_most", "skip_batches_most"), (0, 10**9)),
    "rollback_steps_most": (0, 10**9),
    "rollbacks_a_day": (0, 10_000),
    "orders_a_day": (0, 10_000),
    "orders_an_hour": (1, 10_000),
}
_LONGEST_S = 1e6  # of any other duration: beyond it no thread can be waited for
SETTING_VARIABLES: Mapping[str, str] = {  # setting -> what stands in for it in the environment
    "send_interval_s": "SPIKEGUARD_SEND_INTERVAL",
    "flight_recorder": "SPIKEGUARD_FLIGHT_RECORDER",
    "batch_text": "SPIKEGUARD_BATCH_TEXT",
    "observe_only": "SPIKEGUARD_OBSERVE_ONLY",
    "allow_plain_http": "SPIKEGUARD_ALLOW_PLAIN_HTTP",
}
ARGUMENT_VARIABLES: Mapping[str, str] = {  # where `attach` is not given the argument
    "SPIKEGUARD_RUN": "the run's name",
    "SPIKEGUARD_PROJECT": "the run's project; unset: `default`",
    "SPIKEGUARD_TAGS": "tags of the run, with commas between them",
    "SPIKEGUARD_SERVER": "the server's address; unset: the job works offline",
    "SPIKEGUARD_TOKEN": "a token of role agent",
    "SPIKEGUARD_TOKEN_FILE": "a file that holds it, where `SPIKEGUARD_TOKEN` is not set",
}


def limits_of(name: str) -> tuple[float, float | None]:
    """The least and the most that a number may be; None: any finite one."""
    return _RANGES.get(name, (0, _LONGEST_S if name.endswith("_s") else None))


def whole(value: Any) -> int:
    """`value` as an int, where it is a whole number of any kind (numpy's, 1e9); else ValueError."""
    if not _is_number(value) or value != value // 1:
        raise ValueError(f"{value!r:.80} is not a whole number")
    return int(value // 1)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _plain(value: Any, default: Any) -> Any:
    """A number of any kind as the setting's own; whatever else as it is."""
    if not _is_number(value) or isinstance(default, bool):
        return value
    if isinstance(default, float):
        return value if isinstance(value, int) else float(value)
    return whole(value) if value == value // 1 else value


def _check(name: str, value: Any, default: Any) -> None:
    """Raise `AttachError` for what this setting cannot be."""
    if isinstance(default, tuple):
        words = RULES if name == "silenced_findings" else [verb.value for verb in Verb]
        if not isinstance(value, tuple) or not all(
            isinstance(v, str) and v in words for v in value
        ):
            remedy = f"Give a tuple of some of {', '.join(words)}"
            raise AttachError("settings", f"{name} is {value!r:.80}", remedy)
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise AttachError("settings", f"{name} is {value!r:.80}", "Give True or False")
    elif default is not None or value is not None:
        _check_number(name, value, 0 if default is None else default)


def _check_emergency(given: Settings) -> None:
    """Raise `AttachError` where the emergency rule would be refused by the job's own limits."""
    for name, limit, allowed in (
        ("emergency_factor", "lr_factor_least", given.emergency_factor >= given.lr_factor_least),
        ("emergency_steps", "lr_steps_most", given.emergency_steps <= given.lr_steps_most),
        ("emergency_drops", "allowed_verbs", Verb.SCALE_LR in given.allowed_verbs),
    ):
        if given.emergency_drops and not allowed:
            held, bound = getattr(given, name), getattr(given, limit)
            problem = f"{name} is {held}, which {limit} ({bound}) does not allow"
            raise AttachError("settings", problem, f"Change one of the two, {name} or {limit}")


def _check_number(name: str, value: Any, default: float) -> None:
    least, most = limits_of(name)
    kinds, kind = (int, "a whole number") if isinstance(default, int) else (int | float, "a number")
    if not isinstance(value, kinds) or isinstance(value, bool):
        raise AttachError("settings", f"{name} is {value!r:.80}", f"Give {kind}, at least {least}")
    if not value >= least:
        raise AttachError("settings", f"{name} is {value}", f"Give at least {least:g}")
    if value > (sys.float_info.max if most is None else most):
        limit = "a finite number" if most is None else f"at most {most:g}"
        raise AttachError("settings", f"{name} is {value}", f"Give {limit}")


@dataclass(frozen=True, slots=True)
class Connection:
    """Which run this is and which server hears of it; `server` None = offline."""

    run: RunId
    server: str | None
    token: str | None


def read_connection(
    run: str | None,
    project: str | None,
    server: str | None,
    token: str | None,
    environment: Mapping[str, str] = os.environ,
) -> Connection:
    """Arguments first, then `SPIKEGUARD_*`; raise `AttachError` for what cannot work."""
    name = run or environment.get("SPIKEGUARD_RUN")
    if not name:
        raise AttachError("run", "the run has no name", "Name it here or set SPIKEGUARD_RUN")
    address = server or environment.get("SPIKEGUARD_SERVER") or None
    if address is not None and not is_address(address):
        problem = f"{address[:80]!r} is not the address of a server"
        remedy = "Write it like http://HOST:PORT, or leave it out to work offline"
        raise AttachError("server", problem, remedy)
    try:
        project = project or environment.get("SPIKEGUARD_PROJECT") or DEFAULT_PROJECT
        identity = RunId(project, name)
    except ProtocolError as error:
        raise AttachError(error.field, error.limit, error.remedy) from None
    token = token or environment.get("SPIKEGUARD_TOKEN") or _token_from_file(environment)
    try:
        bearer(token or "")
    except ProtocolError as error:
        raise AttachError(error.field, f"it is none: a token {error.limit}", error.remedy) from None
    return Connection(identity, address.rstrip("/") if address else None, token)


def with_environment(settings: Settings, environment: Mapping[str, str] = os.environ) -> Settings:
    """`settings` with what `SPIKEGUARD_*` ask for in their place."""
    known = {*SETTING_VARIABLES.values(), *ARGUMENT_VARIABLES}
    if (meant := misspelt(environment, known)) is not None:
        raise AttachError("settings", f"{meant[0]} is no setting", f"Write {meant[1]}, or unset it")
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}
    defaults = {field.name: field.default for field in fields(settings)}
    for setting, variable in SETTING_VARIABLES.items():
        if text := environment.get(variable, "").strip():
            values[setting] = _read(variable, text, defaults[setting])
    return Settings(**values)


def _read(variable: str, text: str, default: Any) -> Any:
    """What the environment says, as what `default` is."""
    remedy = "Set it to 1 or 0, or leave it out"
    if isinstance(default, bool) and text.lower() in _SWITCHES:
        return _SWITCHES[text.lower()]
    if not isinstance(default, int | float):
        return text
    if not isinstance(default, bool):
        remedy = f"Set it to a number, as {default}"
        with suppress(ValueError):
            return type(default)(text)
    raise AttachError("settings", f"{variable} is {text[:40]!r}", remedy)


_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


def _token_from_file(environment: Mapping[str, str]) -> str | None:
    path = environment.get("SPIKEGUARD_TOKEN_FILE")
    if not path:
        return None
    try:
        return Path(path).read_text().strip() or None
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no text"
        raise AttachError(
            "token",
            f"SPIKEGUARD_TOKEN_FILE cannot be read ({said})",
            "Make it readable for this user, or set SPIKEGUARD_TOKEN",
        ) from None
