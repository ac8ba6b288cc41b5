"""Starts the dashboard: `python -m spikeguard_dashboard --host 127.0.0.1 --port 8501`.

Replaces this process by Streamlit's own server, so that whoever started it holds the one process
there is; or serves on a socket that whoever started it has bound (`--descriptor`), so that nobody
else can answer in its place. The server comes from `SPIKEGUARD_*` (`settings`); how it looks
and what it never does (usage statistics, deploy button) from `.streamlit/config.toml` beside
`app.py`.
"""

from __future__ import annotations

import os
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

FORWARDED = "FORWARDED_ALLOW_IPS"  # uvicorn's: the proxies whose X-Forwarded-For counts
APP = Path(__file__).with_name("web.py")


def streamlit_arguments(host: str, port: int) -> list[str]:
    """The command line that serves the dashboard."""
    return [
        *(sys.executable, "-m", "streamlit", "run", str(APP)),
        *("--server.address", host, "--server.port", str(port), "--server.headless", "true"),
        *("--browser.gatherUsageStats", "false"),
    ]


def serve_on(listener: socket.socket) -> None:
    """Answer on a socket that listens already, until a signal ends it."""
    import uvicorn

    from spikeguard_dashboard.web import app

    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[listener])


def main(arguments: Sequence[str] | None = None) -> None:
    """Become the dashboard's server."""
    parser = ArgumentParser(prog="python -m spikeguard_dashboard", description=main.__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=8501, help="port to listen on")
    parser.add_argument(
        "--descriptor", type=int, help="of a socket that listens, instead of --host and --port"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault(FORWARDED, "")  # or any user of this machine could claim an address
    if options.descriptor is not None:
        serve_on(socket.socket(fileno=options.descriptor))
        return
    command = streamlit_arguments(options.host, options.port)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
