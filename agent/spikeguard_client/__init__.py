"""The server's HTTP API as typed calls, for programs that build on it. `spikeguard_client.shapes`
has the answers' types. It needs httpx and msgspec, which the extra `cli` brings.

```python
from spikeguard_client import Client

client = Client("https://guard.example", token)
for incident in client.incidents():
    print(incident["id"], incident["title"])
```
"""

from spikeguard_client.calls import ApiError
from spikeguard_client.client import Client

__all__ = ["ApiError", "Client"]
