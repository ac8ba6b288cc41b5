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
    AuditEntry,
    Channel,
    ChannelTest,
    Command,
    Cost,
    Delivery,
    Evidence,
    HappenedEvent,
    Incident,
    IncidentDetail,
    Me,
    Policy,
    Run,
    RunDetail,
    Series,
    Silence,
)
from spikeguard_protocol.signature import SignatureRefused, verify

__all__ = [
    "ApiError",
    "AuditEntry",
    "Channel",
    "ChannelTest",
    "Client",
    "Command",
    "Cost",
    "Delivery",
    "Evidence",
    "HappenedEvent",
    "Incident",
    "IncidentDetail",
    "Me",
    "Policy",
    "Run",
    "RunDetail",
    "Series",
    "SignatureRefused",
    "Silence",
    "verify",
]
