"""Bodies about runs, their history and their series, as docs/protocol.md promises them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, WithJsonSchema

from spikeguard_core.diagnosis.change_effect import Changed, ExpectedEffect
from spikeguard_core.events import Trend
from spikeguard_protocol import Ability, Health, Kind, Medium, SegmentReason
from spikeguard_protocol.identity import MAX_STEP, NAME_PATTERN
from spikeguard_server.identity.actors import ActorKind, KnownBy
from spikeguard_server.store.audit import MAX_REASON

_NUMBER = {"anyOf": [{"type": "number"}, {"type": "string", "enum": ["nan", "inf", "-inf"]}]}
Number = Annotated[float, WithJsonSchema(_NUMBER)]  # nan, inf and -inf travel as words
NameText = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN.pattern}$")]
T = TypeVar("T")
MAX_NOTE = 500  # characters
RunState = Literal["live", "silent", "ended"]
_WHY = Field(min_length=1, max_length=MAX_REASON, description="why, for the record")
Reason = Annotated[str, _WHY]
ReasonGiven = Annotated[str | None, _WHY]
LONGEST_TEXT = 2000  # characters
Told = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=LONGEST_TEXT)
]  # fmt: skip


class Shape(BaseModel):
    """A body that holds what it says and nothing else."""

    model_config = ConfigDict(extra="forbid", from_attributes=True)

    @classmethod
    def of(cls, *sources: object, **told: Any) -> Self:
        """Of each field what is `told`, else the attribute of the first source that has it."""
        for name in cls.model_fields.keys() - told.keys():
            source = next((one for one in sources if hasattr(one, name)), None)
            if source is not None:
                told[name] = getattr(source, name)
        return cls(**told)


class ItemList(Shape, Generic[T]):
    """Items of a list, newest first where nothing else is said; a list that comes whole has no
    cursor."""

    items: list[T]
    next_cursor: str | None = None

    @classmethod
    def model_parametrized_name(cls, params: tuple[Any, ...]) -> str:
        return f"{params[0].__name__.removesuffix('Body')}List"


class SegmentRef(Shape):
    """A segment by its name."""

    attempt: str
    number: int


class PointRef(Shape):
    """The state after `step` of a segment."""

    attempt: str
    segment: int
    step: int


class RunBody(Shape):
    """One training job, through its restarts."""

    project: str
    name: str
    id: str
    state: RunState
    created_at: datetime
    last_message_at: datetime | None
    age_s: float | None = Field(description="seconds since the last message")
    last_step: int | None
    last_loss: Number | None
    last_grad_norm: Number | None
    tokens_per_second: Number | None
    open_incident: int | None
    incidents: int
    waiting_approval: bool
    live_attempts: int = Field(description="above 1 nobody gets orders")
    look_at_job: str | None = Field(description="what to look at where its job may have died")
    open_kind: Kind | None = Field(description="of the open incident")
    tags: list[str] = Field(description="in order")


class AttemptBody(Shape):
    """One start of the run's processes."""

    id: str
    number: int
    parent: PointRef | None
    started_at: datetime
    last_message_at: datetime | None
    ended_at: datetime | None
    end_reason: str | None
    world_size: int | None
    agent_version: str | None
    tokens_per_step: int | None = Field(description="over all ranks; null: not told")
    settings: dict[str, str]
    abilities: list[Ability]
    links: dict[str, str] = Field(description="where the job's own trackers show it, by name")
    dropped_samples: int


class SegmentBody(Shape):
    """An unbroken stretch of steps."""

    attempt: str
    number: int
    reason: SegmentReason
    parent: PointRef | None
    first_step: int | None
    last_step: int | None
    position: int
    current: bool = Field(description="on the line of history that is trained now")


class TargetBody(Shape):
    """A checkpoint or memory snapshot that can be rolled back to."""

    name: str
    attempt: str
    segment: int
    step: int
    position: int
    medium: Medium
    health: Health
    damage: str | None = Field(description="what lies in its tensors; null: nothing was found")
    protected: bool


class NoteBody(Shape):
    """A change that nobody ordered here, and what became of the loss."""

    number: int = Field(description="within the run")
    source: Literal["person", "attempt"]
    at: datetime
    author: str
    began: int | None = Field(description="number of the attempt that began with it")
    attempt: str | None = Field(description="of the last step before it")
    segment: int | None
    step: int = Field(description="the last step before it")
    text: str
    reason: str | None
    changes: list[Changed]
    expect: ExpectedEffect | None
    expect_size: float | None = Field(description="nats")
    effect: Number | None = Field(description="of the loss above its earlier trend, nats")
    effect_error: Number | None = Field(description="half width of its 95 % interval, nats")
    unknown: str | None = Field(description="why there is no effect to tell")
    outcome: str = Field(description="the effect, or why there is none yet, in words")


class Expected(Shape):
    """What a person expects of a change."""

    expect: ExpectedEffect | None = Field(None, description="of the loss, against its trend")
    expect_size: float | None = Field(
        None, gt=0.0, lt=1e6, allow_inf_nan=False, description="by how much, nats"
    )


class NoteWanted(Expected):
    """A change that a person tells of."""

    text: Annotated[
        str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MAX_NOTE)
    ] = Field(description="what was changed")
    step: int | None = Field(
        None, ge=0, le=MAX_STEP, description="the last step before it; null: the run's newest"
    )
    reason: ReasonGiven = None


class WarningBody(Shape):
    """A leading signal that left its baseline, and no incident followed."""

    attempt: int
    segment: int
    step: int
    signal: str
    value: Number
    z: Number
    at: datetime


class RunDetail(RunBody):
    """A run with its attempts, its tree of segments and what it can return to."""

    attempts: list[AttemptBody]  # newest first, at most 100
    segments: list[SegmentBody]  # oldest first, the newest 1000
    targets: list[TargetBody]  # newest first, at most 1000
    precursors: list[WarningBody]  # newest first, at most 20
    notes: list[NoteBody]  # changes that nobody ordered here, newest first, at most 100


class RunList(ItemList[RunBody]):
    """Runs, in the order that was asked for."""

    total: int | None = Field(
        None, description="of all pages, where `count` asked for it; 10,000 at most"
    )


class SegmentSeries(Shape):
    """Columns of one segment, as long as `steps`; null = not measured."""

    attempt: str
    number: int
    current: bool
    steps: list[int]
    values: dict[str, list[Number | None]]
    batches: list[tuple[int, int] | None]


class SeriesBody(Shape):
    """Signals over steps, the line that is trained now first."""

    signals: list[str]
    segments: list[SegmentSeries]
    truncated: bool = Field(description="thinned, with every extreme and non-finite value kept")
    trend: Trend | None


class AuditEntry(Shape):
    """One change of state: who, what, when and why. Never rewritten."""

    number: int
    at: datetime
    actor: str
    action: str
    subject: str
    before: Any
    after: Any
    reason: str | None
    changes: list[Changed] = Field(description="of a policy or a channel, field by field")
    actor_kind: ActorKind | None = Field(description="null: put in by hand")
    token: int | None = Field(description="that stands behind it, where one does")
    session: int | None = Field(description="that was opened with the token")
    known_by: KnownBy | None = Field(description="how it is known which person acted")
