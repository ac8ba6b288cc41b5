"""What an agent tells the server: records, and the message that carries them.

Frozen, validated when made. Every record is safe to receive twice. Messages of an attempt are
numbered without holes; what was lost is declared by a `Gap`, so that nothing ever waits for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass, field

from spikeguard_protocol.errors import ProtocolError
from spikeguard_protocol.identity import (
    NAME_PATTERN,
    TARGET_PATTERN,
    BatchRange,
    CommandId,
    EvenRanges,
    RunId,
    SegmentPoint,
    check_attempt,
    check_count,
)
from spikeguard_protocol.links import check_links
from spikeguard_protocol.vocabulary import Medium, ResultState, SegmentReason, Signal

VERSION = 1
MAX_RECORDS = 1_000  # a message
MAX_STEPS = 10_000  # a Samples record
MAX_SIGNALS = 64  # a Samples record
MAX_LAYERS = 4_096  # a LayerNorms record
MAX_TEXT = 2_000  # characters in a reason
MAX_SETTINGS = 64  # an AttemptStarted record
MAX_NAMES = 64  # of a batch
MAX_NAME = 200  # characters in a name: of a batch, a setting, a verb, a release
MAX_BINS = 32  # of a token histogram: by powers of two of how common a token is
MAX_TOKEN_ID = 2**63
MAX_TOKENS = 16  # that stand out in a batch
MAX_TOKEN_TEXT = 40  # characters of one token
MAX_SNIPPET = 1_000  # characters of a sequence
MAX_BYTES = 4 * 2**20  # an encoded message
_STANDARD = frozenset(Signal)  # names that need no check: records are made inside training steps


def _check_text(name: str, value: str) -> None:
    if len(value) > MAX_TEXT:
        raise ProtocolError(name, f"takes at most {MAX_TEXT} characters", f"Got {len(value)}")


def _check_name(name: str, value: str) -> None:
    if len(value) > MAX_NAME:
        raise ProtocolError(name, f"takes at most {MAX_NAME} characters", f"Got {len(value)}")


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise ProtocolError(name, f"holds at most {limit} entries", f"Got {size}: send several")


def _check_batch_names(names: tuple[str, ...]) -> None:
    _check_size("names", len(names), MAX_NAMES)
    for name in names:
        if len(name) > MAX_NAME:
            limit = f"take at most {MAX_NAME} characters each"
            raise ProtocolError("names", limit, f"Got {len(name)}")


def _check_alike(name: str, limit: int, first: Sized, *others: Sized) -> None:
    _check_size(name, len(first), limit)
    if any(len(other) != len(first) for other in others):
        raise ProtocolError(name, "is as long as what is told of each", "Send lists of one length")


def _check_target(name: str) -> None:
    if not TARGET_PATTERN.fullmatch(name):
        raise ProtocolError("name", "takes 1 to 128 safe characters", f"Got {name[:80]!r}")


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """The run's processes started. Always the first record of an attempt.

    Told again where what it can do has changed: the newest holds.
    """

    parent: SegmentPoint | None  # where the checkpoint or the journal says it goes on from
    world_size: int
    capabilities: tuple[str, ...]  # verbs it can carry out
    agent_version: str
    tokens_per_step: int | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # optimizer, beta2, clip, ... as text
    # Where the job's own trackers show it, by their names.
    links: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("world_size", self.world_size, least=1)
        _check_size("capabilities", len(self.capabilities), 32)
        _check_size("settings", len(self.settings), MAX_SETTINGS)
        _check_name("agent_version", self.agent_version)
        for verb in self.capabilities:
            _check_name("capabilities", verb)
        for name, value in self.settings.items():
            _check_name("settings", name)
            _check_text(f"settings.{name}"[:80], value)
        check_links(self.links)


@dataclass(frozen=True, slots=True)
class SegmentStarted:
    """A stretch of steps begins: at a start and at every rollback."""

    segment: int
    reason: SegmentReason
    parent: SegmentPoint | None
    position: int  # the next position in the data order
    command: str | None = None  # the rollback that opened it

    def __post_init__(self) -> None:
        check_count("segment", self.segment)
        check_count("position", self.position)
        if self.command is not None:
            CommandId.parse(self.command)


@dataclass(frozen=True, slots=True)
class Samples:
    """What was measured at each of `steps` of one segment, column by column.

    Every column of `signals` is as long as `steps`; None = not measured at that step. Values are
    nats, L2 norms, seconds or tokens a second as `Signal` says; NaN and infinities are data.
    """

    segment: int
    steps: tuple[int, ...]  # rising
    signals: Mapping[str, tuple[float | None, ...]]
    positions: tuple[BatchRange | None, ...] | EvenRanges  # what each step consumed

    def __post_init__(self) -> None:
        check_count("segment", self.segment)
        _check_size("steps", len(self.steps), MAX_STEPS)
        _check_size("signals", len(self.signals), MAX_SIGNALS)
        self._check_steps()
        self._check_columns()

    def _check_steps(self) -> None:
        if not self.steps:
            raise ProtocolError("steps", "holds at least 1 entry", "Leave the record out")
        check_count("steps", self.steps[0])
        check_count("steps", self.steps[-1])
        if any(b <= a for a, b in zip(self.steps, self.steps[1:], strict=False)):
            raise ProtocolError("steps", "rises strictly", "Open a new segment to go back")

    def _check_columns(self) -> None:
        for name, column in self.signals.items():
            if name not in _STANDARD and not NAME_PATTERN.fullmatch(name):
                raise ProtocolError(
                    f"signals.{name[:64]}", "takes 1 to 64 safe characters as a name", "Rename it"
                )
            if len(column) != len(self.steps):
                raise ProtocolError(
                    f"signals.{name}",
                    f"holds one value a step ({len(self.steps)})",
                    f"Got {len(column)}; send null where nothing was measured",
                )
        if len(self.positions) != len(self.steps):
            raise ProtocolError(
                "positions", f"holds one range a step ({len(self.steps)})", "Send null for unknown"
            )


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """Detail for a step that was already reported; never reaches the detector."""

    segment: int
    step: int
    signal: str
    norms: Mapping[str, float]  # parameter or layer name -> L2 norm

    def __post_init__(self) -> None:
        check_count("segment", self.segment)
        check_count("step", self.step)
        _check_name("signal", self.signal)
        _check_size("norms", len(self.norms), MAX_LAYERS)
        for name in self.norms:
            _check_text("norms", name)


@dataclass(frozen=True, slots=True)
class TokenHistogram:
    """The tokens of a batch beside those of the batches before.

    Bins by how common a token was before: 0 the tokens that did not occur then, 1 the commonest,
    2 the next two, 3 the next four, ... Shares of 1; all lists of bins, and of tokens, are alike.
    """

    counted: int  # tokens of this batch
    before: int  # batches that it is compared with
    before_last: int  # the last step of these
    bins: tuple[float, ...]
    bins_before: tuple[float, ...]
    ids: tuple[int, ...]  # of the tokens that stand out, the most first
    shares: tuple[float, ...]  # of each in this batch
    shares_before: tuple[float, ...]
    texts: tuple[str, ...] = ()  # of each, where the job tells text

    def __post_init__(self) -> None:
        for name in ("counted", "before", "before_last"):
            check_count(name, getattr(self, name))
        _check_alike("bins", MAX_BINS, self.bins, self.bins_before)
        texts = (self.texts,) if self.texts else ()
        _check_alike("ids", MAX_TOKENS, self.ids, self.shares, self.shares_before, *texts)
        if any(not -MAX_TOKEN_ID <= id < MAX_TOKEN_ID for id in self.ids):
            raise ProtocolError("ids", "lie in [-2**63, 2**63)", "Send the tokens' own ids")
        if any(len(text) > MAX_TOKEN_TEXT for text in self.texts):
            raise ProtocolError("texts", f"take at most {MAX_TOKEN_TEXT} characters", "Cut them")


@dataclass(frozen=True, slots=True)
class BatchDetail:
    """What lay in the batch of a step on one rank. Detail: it never reaches the detector.

    The worst sequence is the one with the highest loss where the loop shows `sequence_losses`, else
    (no `sequence_loss`) the one whose tokens were rarest before.
    """

    segment: int
    step: int
    rank: int
    position: int  # in the data order
    names: tuple[str, ...] = ()  # of documents, shards with offsets, ... as `name_batch` says
    names_cut: int = 0  # names that are missing here, or were shortened
    sequences: int = 0  # on this rank
    worst: int | None = None  # index of the worst of these
    sequence_loss: float | None = None  # its mean, nats per token
    snippet: str | None = None  # the beginning of it, where the job tells text
    histogram: TokenHistogram | None = None

    def __post_init__(self) -> None:
        for name in ("segment", "step", "rank", "position", "names_cut", "sequences"):
            check_count(name, getattr(self, name))
        _check_batch_names(self.names)
        if self.worst is not None:
            check_count("worst", self.worst)
        if self.snippet is not None and len(self.snippet) > MAX_SNIPPET:
            limit = f"takes at most {MAX_SNIPPET} characters"
            raise ProtocolError("snippet", limit, f"Got {len(self.snippet)}")


@dataclass(frozen=True, slots=True)
class TargetSaved:
    """A checkpoint or memory snapshot exists and can be rolled back to."""

    name: str
    segment: int
    step: int  # taken after this step
    position: int  # the next position in the data order
    medium: Medium
    damage: str | None = None  # found in its tensors

    def __post_init__(self) -> None:
        _check_target(self.name)
        check_count("segment", self.segment)
        check_count("step", self.step)
        check_count("position", self.position)
        if self.damage is not None:
            _check_text("damage", self.damage)


@dataclass(frozen=True, slots=True)
class TargetDeleted:
    """A checkpoint or memory snapshot is gone."""

    name: str

    def __post_init__(self) -> None:
        _check_target(self.name)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What became of an order. Repeated until acknowledged; the first one stored stands."""

    command: str
    state: ResultState
    reason: str
    step: int  # the step boundary at which it was decided

    def __post_init__(self) -> None:
        CommandId.parse(self.command)
        _check_text("reason", self.reason)
        check_count("step", self.step)


@dataclass(frozen=True, slots=True)
class Gap:
    """Messages [first, last] of this attempt will never come."""

    first: int
    last: int
    reason: str
    samples_lost: int

    def __post_init__(self) -> None:
        check_count("first", self.first, least=1)
        check_count("last", self.last, least=self.first)
        check_count("samples_lost", self.samples_lost)
        _check_text("reason", self.reason)


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """The attempt ended on purpose; silence means that it was killed."""

    reason: str  # finished, stopped, or the error's type

    def __post_init__(self) -> None:
        _check_text("reason", self.reason)


Record = (
    AttemptStarted
    | SegmentStarted
    | Samples
    | LayerNorms
    | BatchDetail
    | TargetSaved
    | TargetDeleted
    | CommandResult
    | Gap
    | AttemptEnded
)


@dataclass(frozen=True, slots=True)
class Message:
    """One envelope from one attempt of one run."""

    project: str
    run: str
    attempt: str
    sequence: int  # from 1, without holes within the attempt
    age_s: float  # seconds since its newest record was made, by a monotonic clock
    records: tuple[Record, ...]
    version: int = VERSION

    def __post_init__(self) -> None:
        RunId(self.project, self.run)
        check_attempt("attempt", self.attempt)
        check_count("sequence", self.sequence, least=1)
        _check_size("records", len(self.records), MAX_RECORDS)
        if not 0.0 <= self.age_s < 1e9:
            raise ProtocolError("age_s", "lies in [0, 1e9)", "Measure it with a monotonic clock")

    @property
    def run_id(self) -> RunId:
        return RunId(self.project, self.run)
