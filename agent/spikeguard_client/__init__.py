"""The server's HTTP API as typed calls, for programs that build on it. Standard library only.

```python
from spikeguard_client import Client

client = Client("https://guard.example", token)
for event in client.events("default"):
    if event["event"] == "command.propose":
        ...
```
"""

from spikeguard_client.client import ApiError, Client
from spikeguard_client.shapes import (
    Attempt,
    AuditEntry,
    Batches,
    Cause,
    Channel,
    ChannelTest,
    Command,
    CommandRevision,
    Cost,
    Delivery,
    Evidence,
    FirstLayer,
    HappenedEvent,
    Incident,
    IncidentDetail,
    IncidentRevision,
    Layers,
    Me,
    Point,
    Policy,
    Precursor,
    Run,
    RunDetail,
    Segment,
    SegmentSeries,
    Series,
    Silence,
    Target,
    Trend,
)
from spikeguard_protocol.signature import SignatureRefused, verify

__all__ = [
    "ApiError",
    "Attempt",
    "AuditEntry",
    "Batches",
    "Cause",
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
    "Me",
    "Point",
    "Policy",
    "Precursor",
    "Run",
    "RunDetail",
    "Segment",
    "SegmentSeries",
    "Series",
    "SignatureRefused",
    "Silence",
    "Target",
    "Trend",
    "verify",
]
