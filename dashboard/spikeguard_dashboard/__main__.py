"""Starts the dashboard: `python -m spikeguard_dashboard --host 127.0.0.1 --port 8501`.

Serves on the address, or on a socket that whoever started it has bound (`--descriptor`), so that
nobody else can answer in its place. The server comes from `SPIKEGUARD_*` (`settings`); how it looks
and what it never does (usage statistics, deploy button) from `.streamlit/config.toml` beside
`app.py`.
"""

from __future__ import annotations

import os
import socket
from argparse import ArgumentParser
from collections.abc import Sequence

FORWARDED = "FORWARDED_ALLOW_IPS"  # uvicorn's: the proxies whose X-Forwarded-For counts


def main(arguments: Sequence[str] | None = None) -> None:
    """Answer until a signal ends it."""
    parser = ArgumentParser(prog="python -m spikeguard_dashboard", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8501, help="port to listen on")
    parser.add_argument(
        "--descriptor", type=int, help="of a socket that listens, instead of --host and --port"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault(FORWARDED, "")  # or any user of this machine could claim an address
    import uvicorn

    from spikeguard_dashboard.web import app

    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    given = None if options.descriptor is None else [socket.socket(fileno=options.descriptor)]
    uvicorn.Server(config).run(sockets=given)


if __name__ == "__main__":
    main()
