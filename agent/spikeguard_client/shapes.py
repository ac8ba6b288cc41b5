"""The shapes of the API's answers about runs and their incidents, by the names that the server's
OpenAPI document gives them.

Law: descriptions only. Times are RFC 3339 texts in UTC; a float may be NaN or infinite, None means
that nothing was measured. A key that a newer server adds is kept and not described.
"""

from __future__ import annotations

from typing import Any, TypedDict

Batches = list[int]  # [first, end) in the data order


class Point(TypedDict):
    """The state after `step` of a segment."""

    attempt: str
    segment: int
    step: int


class SegmentRef(TypedDict):
    """A segment by its name."""

    attempt: str
    number: int


class Run(TypedDict):
    """One training job in a list."""

    project: str
    name: str
    id: str
    state: str  # live, silent, ended
    created_at: str
    last_message_at: str | None
    age_s: float | None
    last_step: int | None
    last_loss: float | None
    last_grad_norm: float | None
    tokens_per_second: float | None
    open_incident: int | None
    incidents: int
    waiting_approval: bool
    live_attempts: int
    look_at_job: str | None  # what to look at where its job may have died
    archived_at: str | None  # left out of lists since


class Ability(TypedDict):
    """Whether something can be done in a job; if not, why, and what helps."""

    name: str  # skip_update, clip, skip_batches, rollback, scale_lr, rewind_from_memory, ...
    answer: str  # yes, no, not known yet
    reason: str
    remedy: str  # empty: nothing needs doing
    cost: str


class Attempt(TypedDict):
    """One start of the run's processes."""

    id: str
    number: int
    parent: Point | None
    started_at: str
    last_message_at: str | None
    ended_at: str | None
    end_reason: str | None
    world_size: int | None
    agent_version: str | None
    capabilities: list[str]
    settings: dict[str, str]
    dropped_samples: int
    abilities: list[Ability]


class Segment(TypedDict):
    """An unbroken stretch of trained steps."""

    attempt: str
    number: int
    reason: str
    parent: Point | None
    first_step: int | None
    last_step: int | None
    position: int
    current: bool


class Target(TypedDict):
    """What a run can be rolled back to."""

    name: str
    attempt: str
    segment: int
    step: int
    position: int
    medium: str
    health: str
    protected: bool


class RunWarning(TypedDict):
    """A leading signal that left its baseline, and no incident followed."""

    attempt: int
    segment: int
    step: int
    signal: str
    value: float
    z: float
    at: str


class RunDetail(Run):
    """One run with its history."""

    attempts: list[Attempt]
    segments: list[Segment]
    targets: list[Target]
    precursors: list[RunWarning]  # newest first


class Cost(TypedDict):
    """What a command costs, as of now or, once it was carried out, as it was."""

    steps: int
    seconds: float | None
    tokens: int | None
    money: float | None
    currency: str | None  # of `money`
    step_time_s: float | None  # the pace that it is reckoned at
    step_time_of: int  # steps before the onset that the pace is the median of
    waiting_steps: int | None  # more of `steps` for every minute of waiting
    waiting_money: float | None  # more of `money` for every minute of waiting


class CommandRevision(TypedDict):
    """What was proposed before."""

    number: int
    at: str
    verb: str
    arguments: dict[str, Any]
    reason: str


class Command(TypedDict):
    """A proposed, decided or executed command."""

    id: str
    number: int
    incident: str
    verb: str
    arguments: dict[str, Any]
    state: str
    revision: int
    reason: str
    policy_version: int | None
    checks: list[str]  # to look at before approving, while it waits
    cost: Cost
    attempt: str | None
    expires_in_s: float | None
    expires_at_step: int | None
    proposed_at: str
    approvals: int  # people who have to approve it, one after the other
    first_approved_at: str | None
    first_approved_by: str | None  # of two
    decided_at: str | None
    decided_by: str | None  # of two people both
    decision_reason: str | None
    delivered_at: str | None
    finished_at: str | None
    applied_step: int | None
    result: str | None
    end_reason: str | None  # why it ended without reaching the job
    judgement: str | None
    revisions: list[CommandRevision]


class Trend(TypedDict):
    """Where the loss was heading: straight in the logarithm of the step.

    At step s it is `level + slope * (step + 1) * log((s + 1) / (step + 1))`.
    """

    step: int
    level: float
    slope: float  # change a step, at `step`
    scale: float  # robust standard deviation
    band: float  # half width of the band of usual values, in scales


class FirstMove(TypedDict):
    """The first signal to move, and where."""

    signal: str
    step: int


class Incident(TypedDict):
    """One spike in a list."""

    id: str
    run: str
    project: str
    number: int
    state: str
    kind: str
    confidence: float
    reason: str
    settled: bool
    onset_step: int
    detected_step: int
    peak_step: int
    closed_step: int | None
    onset_batches: Batches | None
    segment: SegmentRef
    signal: str  # that opened it
    first_signal: FirstMove
    symptom: str
    title: str  # what every view calls it
    summary: str  # what happened, without a full stop
    loss_rose: bool
    pre_loss: float | None
    peak_loss: float | None
    excess: float | None
    newest_step: int
    dropped: bool
    stuck: bool
    apart: bool
    recurrences: int
    outcome: str | None
    opened_at: str
    closed_at: str | None
    trend: Trend | None
    proposal: Command | None


class Precursor(TypedDict):
    """A warning before the loss moved."""

    step: int
    signal: str
    value: float
    z: float


class Evidence(TypedDict):
    """What backs an incident up."""

    first_moves: dict[str, int]
    worst_z: dict[str, float]
    peaks: dict[str, float]
    precursors: list[Precursor]


class IncidentRevision(TypedDict):
    """What a spike was held to be, and when."""

    number: int
    step: int
    at: str
    kind: str
    confidence: float
    reason: str


class Cause(TypedDict):
    """What may have started a spike, and what speaks for it."""

    cause: str
    confidence: float
    reasons: list[str]


class Remedy(TypedDict):
    """What an incident is taken for when its remedy is chosen, and what that asks for."""

    diagnosis: str
    known: bool  # whether a cause is sure enough to act on
    title: str
    sentence: str
    follow_ups: list[str]  # for the next morning


class FirstLayer(TypedDict):
    """The layer that moved first, where norms by layer are sent."""

    signal: str
    layer: str
    step: int
    ratio: float  # to its usual norm
    layers_moved: int  # at that step
    layers_known: int


class IncidentDetail(Incident):
    """One spike with its evidence and its commands."""

    revisions: list[IncidentRevision]
    evidence: Evidence
    causes: list[Cause]  # the likeliest first
    remedy: Remedy
    first_layer: FirstLayer | None
    commands: list[Command]
    has_postmortem: bool


class SegmentSeries(TypedDict):
    """Columns of one segment, as long as `steps`; None = not measured."""

    attempt: str
    number: int
    current: bool
    steps: list[int]
    values: dict[str, list[float | None]]
    batches: list[Batches | None]


class Series(TypedDict):
    """Signals over steps, the line that is trained now first."""

    signals: list[str]
    segments: list[SegmentSeries]
    truncated: bool
    trend: Trend | None


class Layers(TypedDict):
    """Norms by layer at the steps that were told, of the segment in which the spike began."""

    signal: str
    onset_step: int
    segment: SegmentRef
    layers: list[str]
    steps: list[int]
    norms: list[list[float | None]]


class Change(TypedDict):
    """A setting that changed. None: it was not set, or is no longer. Twice the same: it changed,
    and what it holds is secret."""

    field: str
    before: Any
    after: Any


class LedgerEntry(TypedDict):
    """A command that went out (`kind` is `command`), or batches that were left out (`batches`).

    What only the other kind has is None.
    """

    kind: str
    at: str  # delivered; told of
    command: str | None  # for batches: the one that asked to leave them out, where known
    attempt: str | None
    segment: int | None
    step: int | None  # at which it was applied; completed when they were passed over
    verb: str | None
    arguments: dict[str, Any] | None
    state: str | None
    reason: str | None
    result: str | None
    finished_at: str | None
    batches: Batches | None
    rank: int | None
    names: list[str] | None
    names_cut: int | None  # names that are missing, or were shortened


class AuditEntry(TypedDict):
    """One change of state: who, what, when and why."""

    number: int
    at: str
    actor: str
    action: str
    subject: str
    before: str | None
    after: str | None
    reason: str | None
    actor_kind: str | None  # person, token, policy, agent, server, command_line
    token: int | None  # that stands behind it
    session: int | None
    known_by: str | None  # how the person is known: token, proxy, oidc, typed, link
    changes: list[Change]


class HappenedEvent(AuditEntry):
    """An audit entry as it comes by, with its name (`command.approve`) and its place."""

    event: str
    id: str  # what to go on after
    project: str
    run: str
