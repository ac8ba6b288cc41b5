"""Where the command line remembers who you are: one file, readable by you alone.

It holds one login a server; the first is used, or that of `SPIKEGUARD_SERVER`. Written with mode
0600 from the first byte and replaced in one move. `SPIKEGUARD_SERVER` with `SPIKEGUARD_TOKEN` or
`SPIKEGUARD_TOKEN_FILE` take precedence, so that scripts need no login.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from spikeguard_cli.command import CommandFailed, NotAllowed
from spikeguard_cli.own_files import read_own, write_own
from spikeguard_protocol.variables import misspelt

VARIABLES: Mapping[str, str] = {
    "SPIKEGUARD_SERVER": "the server's address; without a token beside it, of your login there",
    "SPIKEGUARD_TOKEN": "the token that speaks for you there",
    "SPIKEGUARD_TOKEN_FILE": "a file that holds it, where `SPIKEGUARD_TOKEN` is not set",
    "SPIKEGUARD_CREDENTIALS": "the file that `spikeguard login` writes; unset: "
    "`~/.config/spikeguard/credentials.json`",
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """A server and the token that speaks for a person there."""

    server: str  # http(s)://host:port, without a path
    token: str
    name: str | None = None  # whose token it is, where known
    source: str = ""  # the variable or file that the token came from

    @property
    def from_environment(self) -> bool:
        """Whether a variable named the token, and no login did."""
        return self.source.startswith("SPIKEGUARD_")


def credentials_path(environ: Mapping[str, str] = os.environ) -> Path:
    """`$SPIKEGUARD_CREDENTIALS`, else `~/.config/spikeguard/credentials.json`."""
    if chosen := environ.get("SPIKEGUARD_CREDENTIALS"):
        return Path(chosen)
    config = environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "spikeguard" / "credentials.json"


def save_credentials(credentials: Credentials, path: Path, *, up: str = "") -> bool:
    """Write `credentials` so that no other user can read them at any moment, beside those of other
    servers; whether they are what is used from now on.

    A login is. `up` names the directory of a `spikeguard up`, which takes no other server's place:
    it replaces its own login, however its port changed.
    """
    mine: dict[str, str | None] = {
        "server": credentials.server,
        "token": credentials.token,
        "name": credentials.name,
    }
    mine |= {"up": up} if up else {}
    stored = _stored(path)
    others = [
        one
        for one in stored
        if one["server"] != credentials.server and not (up and one.get("up") == up)
    ]
    first = not up or not others or others[0] is not stored[0]
    logins = [mine, *others] if first else [others[0], mine, *others[1:]]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_own(path, json.dumps({"logins": logins}))
    return first


def _stored(path: Path) -> list[dict[str, str | None]]:
    """The logins that are kept, the one that is used first; none where they cannot be read."""
    try:
        return list(json.loads(read_own(path))["logins"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def load_credentials(environ: Mapping[str, str] = os.environ) -> Credentials:
    """From the environment or the file; raise `CommandFailed` with the remedy otherwise."""
    return _from_environment(environ) or load_login(environ)


def load_login(environ: Mapping[str, str] = os.environ) -> Credentials:
    """What `spikeguard login` or `up` kept; raise `CommandFailed` with the remedy otherwise."""
    path, wanted = credentials_path(environ), environ.get("SPIKEGUARD_SERVER", "").rstrip("/")
    try:
        logins = json.loads(read_own(path))["logins"]
        used = next((one for one in logins if wanted in ("", one["server"])), None)
        if used is None:
            raise NotAllowed(
                f"nobody is logged in at {wanted}, which SPIKEGUARD_SERVER names. Run `spikeguard "
                f"login --server {wanted}`, or unset it"
            )
        return Credentials(used["server"], used["token"], used.get("name"), str(path))
    except FileNotFoundError:
        if (meant := misspelt(environ, VARIABLES)) is not None:
            raise NotAllowed(f"{meant[0]} is no variable. Write {meant[1]}, or unset it") from None
        raise NotAllowed(
            "nobody is logged in here. Run `spikeguard login --server URL`, "
            "or set SPIKEGUARD_SERVER and SPIKEGUARD_TOKEN"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"{path} cannot be read ({error}). Run `spikeguard login`") from error


def logged_in(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether there is anything to speak to a server with."""
    return _from_environment(environ) is not None or credentials_path(environ).exists()


def _from_environment(environ: Mapping[str, str]) -> Credentials | None:
    server, token = environ.get("SPIKEGUARD_SERVER"), environ.get("SPIKEGUARD_TOKEN")
    source = "SPIKEGUARD_TOKEN"
    if server and not token and (file := environ.get("SPIKEGUARD_TOKEN_FILE")):
        source = f"SPIKEGUARD_TOKEN_FILE ({file})"
        try:
            token = Path(file).read_text().strip()
        except (OSError, ValueError) as error:
            raise NotAllowed(
                f"{source} cannot be read ({error}). Name another, or unset it"
            ) from error
    return Credentials(server.rstrip("/"), token, source=source) if server and token else None
