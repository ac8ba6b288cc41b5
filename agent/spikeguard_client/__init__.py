"""The server's HTTP API as typed calls, for programs that build on it. Standard library only.

```python
from spikeguard_client import Client

client = Client("https://guard.example", token)
for event in client.events("default"):
    if event["event"] == "command.propose":
        ...
```
"""

from spikeguard_client.access_shapes import (
    AccessToken,
    Me,
    NewToken,
    Policy,
    Scorecard,
    Session,
    Shadow,
    SignInLink,
)
from spikeguard_client.calls import ApiError
from spikeguard_client.channel_shapes import (
    Channel,
    ChannelTest,
    Delivery,
    Silence,
)
from spikeguard_client.client import Client
from spikeguard_client.shapes import (
    Ability,
    Attempt,
    AuditEntry,
    Batches,
    Cause,
    Change,
    Command,
    CommandRevision,
    Cost,
    Evidence,
    FirstLayer,
    HappenedEvent,
    Incident,
    IncidentDetail,
    IncidentRevision,
    Layers,
    LedgerEntry,
    Point,
    Precursor,
    Remedy,
    Run,
    RunDetail,
    RunWarning,
    Segment,
    SegmentSeries,
    Series,
    Target,
    Trend,
)
from spikeguard_protocol.signature import SignatureRefused, verify

__all__ = [
    "Ability",
    "AccessToken",
    "ApiError",
    "Attempt",
    "AuditEntry",
    "Batches",
    "Cause",
    "Change",
    "Channel",
    "ChannelTest",
    "Client",
    "Command",
    "CommandRevision",
    "Cost",
    "Delivery",
    "Evidence",
    "FirstLayer",
    "HappenedEvent",
    "Incident",
    "IncidentDetail",
    "IncidentRevision",
    "Layers",
    "LedgerEntry",
    "Me",
    "NewToken",
    "Point",
    "Policy",
    "Precursor",
    "Remedy",
    "Run",
    "RunDetail",
    "RunWarning",
    "Scorecard",
    "Segment",
    "SegmentSeries",
    "Series",
    "Session",
    "Shadow",
    "SignInLink",
    "SignatureRefused",
    "Silence",
    "Target",
    "Trend",
    "verify",
]
