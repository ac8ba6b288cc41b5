"""A server of a test's own, for settings that the shared one does not have."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from spikeguard_server.cli.serve import listen, server_config
from spikeguard_server.http.app import create_app
from spikeguard_server.settings import Settings
from spikeguard_server.store.engine import open_engine

SILENT_S = 600.0  # a busy machine may take minutes for a file whose jobs send nothing meanwhile


@contextmanager
def serving(settings: Settings, port: int = 0) -> Iterator[str]:
    """Answers in a thread of its own, without a ticker; yields its address.

    `port` 0: a free one."""
    engine = open_engine(settings)
    app = create_app(settings, engine, ticker=False)
    server = uvicorn.Server(server_config(app))
    with listen("127.0.0.1", port) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(120)
            engine.dispose()
