"""The wire between a training job and the server: words, identities, messages, their encoding.

Standard library only, imported by every other package and importing none of them.
"""

from spikeguard_protocol.abilities import (
    BY_RESTART as BY_RESTART,
    Ability as Ability,
    abilities_from_settings as abilities_from_settings,
    abilities_to_settings as abilities_to_settings,
    without_abilities as without_abilities,
)
from spikeguard_protocol.encoding import (
    decode_ack as decode_ack,
    decode_message as decode_message,
    encode as encode,
    from_json as from_json,
    plain_json as plain_json,
    read_ack as read_ack,
    to_json as to_json,
)
from spikeguard_protocol.errors import (
    ProtocolError as ProtocolError,
    UnknownVersion as UnknownVersion,
)
from spikeguard_protocol.identity import (
    DEFAULT_PROJECT as DEFAULT_PROJECT,
    OWN_RULE as OWN_RULE,
    RUN_ITSELF as RUN_ITSELF,
    BatchRange as BatchRange,
    CommandId as CommandId,
    EvenRanges as EvenRanges,
    IncidentId as IncidentId,
    RunId as RunId,
    SegmentId as SegmentId,
    SegmentPoint as SegmentPoint,
)
from spikeguard_protocol.messages import (
    MAX_BYTES as MAX_BYTES,
    VERSION as VERSION,
    AttemptEnded as AttemptEnded,
    AttemptStarted as AttemptStarted,
    BatchDetail as BatchDetail,
    CommandResult as CommandResult,
    Gap as Gap,
    LayerNorms as LayerNorms,
    Message as Message,
    Record as Record,
    Samples as Samples,
    SegmentStarted as SegmentStarted,
    TargetDeleted as TargetDeleted,
    TargetSaved as TargetSaved,
    TokenHistogram as TokenHistogram,
)
from spikeguard_protocol.orders import (
    Ack as Ack,
    Action as Action,
    Apply as Apply,
    CheckpointNow as CheckpointNow,
    Order as Order,
    Rollback as Rollback,
    ScaleLr as ScaleLr,
    SkipBatches as SkipBatches,
    Stop as Stop,
    UnreadableOrder as UnreadableOrder,
    Watch as Watch,
    action_words as action_words,
    verb_of as verb_of,
)
from spikeguard_protocol.vocabulary import (
    OPTIONAL_SIGNALS as OPTIONAL_SIGNALS,
    RATES_OF_GROUPS as RATES_OF_GROUPS,
    STANDARD_SIGNALS as STANDARD_SIGNALS,
    Answer as Answer,
    Cause as Cause,
    CommandState as CommandState,
    Health as Health,
    IncidentState as IncidentState,
    Kind as Kind,
    Medium as Medium,
    OptionalSignal as OptionalSignal,
    Outcome as Outcome,
    ResponseAction as ResponseAction,
    ResultState as ResultState,
    Role as Role,
    SegmentReason as SegmentReason,
    Signal as Signal,
    Verb as Verb,
)
