"""The server's HTTP API as typed calls, for programs that build on it. Standard library only.

```python
from spikeguard_client import Client

client = Client("https://guard.example", token)
for event in client.events("default"):
    if event["event"] == "command.propose":
        ...
```
"""

from spikeguard_client.calls import ApiError
from spikeguard_client.client import Client
from spikeguard_client.shapes import (
    Ability,
    AccessToken,
    Attempt,
    AuditEntry,
    Batches,
    Cause,
    Change,
    Channel,
    ChannelTest,
    Command,
    CommandRevision,
    Cost,
    Delivery,
    Evidence,
    FirstLayer,
    Incident,
    IncidentDetail,
    IncidentRevision,
    Layers,
    LedgerEntry,
    Me,
    NewToken,
    Note,
    Point,
    Policy,
    Precursor,
    Remedy,
    Run,
    RunDetail,
    RunWarning,
    Scorecard,
    Segment,
    SegmentSeries,
    Series,
    Session,
    SettingChange,
    Shadow,
    SignInLink,
    Silence,
    Target,
    Trend,
)
from spikeguard_client.stream import HappenedEvent
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
    "Note",
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
    "SettingChange",
    "Shadow",
    "SignInLink",
    "SignatureRefused",
    "Silence",
    "Target",
    "Trend",
    "verify",
]
