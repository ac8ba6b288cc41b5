"""The shapes of the API's answers, made of the server's OpenAPI document.

Made by `python -m benchmarks.reference`; a test fails where it is not what the document says. Times
are RFC 3339 texts in UTC; a float may be NaN or infinite, None means that nothing was measured. A
key that a newer server adds is left out.
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
    """One training job, through its restarts."""

    project: str
    name: str
    id: str
    state: str
    created_at: str
    last_message_at: str | None
    age_s: float | None  # seconds since the last message
    last_step: int | None
    last_loss: float | None
    last_grad_norm: float | None
    tokens_per_second: float | None
    open_incident: int | None
    incidents: int
    waiting_approval: bool
    live_attempts: int  # above 1 nobody gets orders
    look_at_job: str | None  # what to look at where its job may have died
    open_kind: str | None  # of the open incident
    tags: list[str]  # in order


class Ability(TypedDict):
    """One row: what, whether, why, what to do about it, and what it costs."""

    name: str
    answer: str
    reason: str
    remedy: str
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
    tokens_per_step: int | None  # over all ranks; null: not told
    settings: dict[str, str]
    abilities: list[Ability]
    links: dict[str, str]  # where the job's own trackers show it, by name
    dropped_samples: int


class Segment(TypedDict):
    """An unbroken stretch of steps."""

    attempt: str
    number: int
    reason: str
    parent: Point | None
    first_step: int | None
    last_step: int | None
    position: int
    current: bool  # on the line of history that is trained now


class Target(TypedDict):
    """A checkpoint or memory snapshot that can be rolled back to."""

    name: str
    attempt: str
    segment: int
    step: int
    position: int
    medium: str
    health: str
    damage: str | None  # what lies in its tensors; null: nothing was found
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


class Change(TypedDict):
    """One setting and its values; None: it was not told or set. Two that are the same: it changed,
    and what it holds is secret.
    """

    field: str
    before: Any
    after: Any


class Note(TypedDict):
    """A change that nobody ordered here, and what became of the loss."""

    number: int  # within the run
    source: str
    at: str
    author: str
    began: int | None  # number of the attempt that began with it
    attempt: str | None  # of the last step before it
    segment: int | None
    step: int  # the last step before it
    text: str
    reason: str | None
    changes: list[Change]
    expect: str | None
    expect_size: float | None  # nats
    effect: float | None  # of the loss above its earlier trend, nats
    effect_error: float | None  # half width of its 95 % interval, nats
    unknown: str | None  # why there is no effect to tell
    outcome: str  # the effect, or why there is none yet, in words


class RunDetail(Run):
    """A run with its attempts, its tree of segments and what it can return to."""

    attempts: list[Attempt]
    segments: list[Segment]
    targets: list[Target]
    precursors: list[RunWarning]
    notes: list[Note]


class Cost(TypedDict):
    """Steps lost, and more each minute of waiting. Null: not known, or no price per hour is set."""

    steps: int
    seconds: float | None
    tokens: int | None
    money: float | None
    step_time_s: float | None
    waiting_steps: int | None
    waiting_money: float | None
    currency: str | None


class CommandRevision(TypedDict):
    """What the proposal said before."""

    number: int
    at: str
    verb: str
    arguments: dict[str, Any]
    reason: str


class Command(TypedDict):
    """A command from proposal to judgement."""

    id: str
    number: int
    incident: str | None  # null: a person ordered it of the run itself
    verb: str
    arguments: dict[str, Any]
    state: str
    revision: int
    reason: str
    policy_version: int | None
    policy_scope: str  # whose policy: the run's own, its project's
    checks: list[str]  # to look at before approving, while it waits
    cost: Cost | None  # null: of the run itself, or in the answer to a decision
    attempt: str | None
    expires_in_s: float | None
    proposed_at: str
    proposed_by: str | None  # the person who ordered it; null: the policy
    decided_at: str | None
    decided_by: str | None
    decision_reason: str | None
    applied_step: int | None
    result: str | None
    end_reason: str | None  # why it ended without reaching the job
    judgement: str | None
    effect: str | None  # on the loss, in words: of a rollback against the branch that it undid
    revisions: list[CommandRevision]  # the newest 20


class Trend(TypedDict):
    """Where a signal was heading, straight in the logarithm of the step: at step s `level + slope *
    (step + 1) * log((s + 1) / (step + 1))`; a loss in nats, `band` in scales.
    """

    step: int
    level: float
    slope: float
    scale: float
    band: float


class FirstMove(TypedDict):
    """The first signal to move, and the step at which it did."""

    signal: str
    step: int


class Incident(TypedDict):
    """One spike, from onset to close."""

    id: str
    run: str
    project: str
    number: int
    state: str
    kind: str
    confidence: float  # probability that `kind` is right, 0 to 1
    reason: str
    onset_step: int
    detected_step: int
    peak_step: int
    closed_step: int | None
    segment: SegmentRef
    signal: str  # that opened it; `first_signal` may have moved before
    first_signal: FirstMove
    title: str  # what every view calls it
    summary: str  # what happened, in a sentence without its full stop
    pre_loss: float | None  # the trend just before the onset, nats
    peak_loss: float | None  # nats
    excess: float | None  # of the loss over the trend at `newest_step`, nats
    height: str | None  # `excess` in words, with its error where that matters
    newest_step: int  # the newest that was judged
    dropped: bool  # whether the agent kept the onset's update out
    stuck: bool  # whether updates were dropped in a row, so that weights stand still
    apart: bool  # whether ranks were found to hold different weights
    recurrences: int  # times it was there again after a command or a restart
    outcome: str | None
    opened_at: str
    closed_at: str | None
    acknowledged_at: str | None
    acknowledged_by: str | None  # who looks at it; null: nobody has said so
    assignee: str | None  # whose it is; null: nobody's
    trend: Trend | None
    proposal: Command | None


class Evidence(TypedDict):
    """How far each signal moved."""

    worst_z: dict[str, float]  # by signal, in robust deviations; of norms in log space


class IncidentRevision(TypedDict):
    """What an incident was classified as, from one moment on."""

    step: int
    at: str
    kind: str
    confidence: float
    reason: str
    number: int


class Cause(TypedDict):
    """What may have started it, how likely that is, and what speaks for and against it."""

    cause: str
    confidence: float
    reasons: list[str]  # sentences without their full stops
    against: list[str]  # the same, of what speaks against it


class Response(TypedDict):
    """What a person did about an incident, beside deciding on its commands."""

    number: int
    at: str
    person: str
    action: str
    assignee: str | None
    text: str | None


class VerbOption(TypedDict):
    """Whether a verb can be ordered now; if not, why, and what helps."""

    verb: str
    possible: bool
    reason: str  # why not; empty where it is possible
    remedy: str


class TargetOption(TypedDict):
    """What the run can go back to, and what that would cost now."""

    name: str
    step: int
    position: int  # the next batch in the data order
    medium: str
    health: str
    damage: str | None  # what lies in its tensors; null: nothing was found
    age_s: float
    reachable: bool  # false: further back than the job's own limit
    cost: Cost


class OrderLimits(TypedDict):
    """What the attempt's own settings allow; named as there. None: it told no such limit."""

    lr_factor_least: float | None
    lr_steps_most: float | None
    apply_steps_most: float | None
    skip_batches_most: float | None
    rollback_steps_most: float | None
    rollbacks_a_day: float | None
    orders_a_day: float | None


class Options(TypedDict):
    """What a person may order of a run now."""

    step: int
    position: int | None
    incident: int | None  # number of the open one
    command: int | None  # number of what it proposes, which an order replaces
    revision: int | None
    verbs: list[VerbOption]
    targets: list[TargetOption]  # newest first, at most 1000
    limits: OrderLimits
    mitigations: dict[str, str]  # what the job can switch on: name to cost


class Intervention(TypedDict):
    """One thing that was done to a run: a command of the job, or a change made outside."""

    id: str  # of a command its id, of a note `RUN/note-NUMBER`
    source: str  # command: ordered here; person: told of; attempt: found where one began
    at: str
    by: str  # who ordered or told it; of a proposal the policy
    approved_by: str | None
    step: int | None  # it was carried out at; null: not, or not yet
    what: str
    why: str | None
    state: str | None  # of a command
    expect: str | None
    expect_size: float | None  # nats
    effect: float | None  # of the loss above its earlier trend, nats
    effect_error: float | None  # half width of its 95 % interval, nats
    outcome: str  # the effect, or why there is none, in words
    judgement: str | None  # of a command: what became of it


class ActionTally(TypedDict):
    """What one way of acting came to."""

    verb: str | None
    count: int
    words: str


class IncidentDetail(Incident):
    """An incident with its revisions, its evidence and every command."""

    revisions: list[IncidentRevision]  # the first 500 and the newest 500
    evidence: Evidence
    # the likely one with its best reason, or that it is not known; empty where the title says it
    cause: str
    causes: list[Cause]  # the likeliest first
    commands: list[Command]
    responses: list[Response]  # the newest 200, oldest first
    # what was done about earlier ones of this kind and likeliest cause
    precedents: list[ActionTally]
    has_postmortem: bool


class SegmentSeries(TypedDict):
    """Columns of one segment, as long as `steps`; null = not measured."""

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
    truncated: bool  # thinned, with every extreme and non-finite value kept
    trend: Trend | None


class AuditEntry(TypedDict):
    """One change of state: who, what, when and why. Never rewritten."""

    number: int
    at: str
    actor: str
    action: str
    subject: str
    before: Any
    after: Any
    reason: str | None
    changes: list[Change]  # of a policy or a channel, field by field
    actor_kind: str | None  # null: put in by hand
    token: int | None  # that stands behind it, where one does
    session: int | None  # that was opened with the token
    known_by: str | None  # how it is known which person acted


class Me(TypedDict):
    """Who holds the token that was sent."""

    name: str | None
    role: str
    project: str | None
    run: str | None  # null = every run of the project
    expires_in_s: float | None
    token: int  # number of the token that stands behind it, the same for all its sessions


class Session(TypedDict):
    """A person's token, for SPIKEGUARD_SESSION_HOURS; the name stands behind every decision."""

    token: str
    name: str
    role: str
    project: str | None
    expires_in_s: float
