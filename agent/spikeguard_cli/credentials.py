"""Where the command line remembers who you are: one file, readable by you alone.

Law: written with mode 0600 from the first byte and replaced in one move. `SPIKEGUARD_SERVER` with
`SPIKEGUARD_TOKEN` or `SPIKEGUARD_TOKEN_FILE` take precedence, so that scripts need no login.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from spikeguard_cli.command import CommandFailed, NotAllowed
from spikeguard_cli.own_files import read_own

VARIABLES: Mapping[str, str] = {
    "SPIKEGUARD_SERVER": "the server's address; needs a token beside it",
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


def save_credentials(credentials: Credentials, path: Path) -> None:
    """Write `credentials` so that no other user can read them at any moment."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)  # whoever was there first keeps no hold on it
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        plain = asdict(credentials)
        del plain["source"]
        json.dump(plain, file)
    os.replace(fresh, path)


def load_credentials(environ: Mapping[str, str] = os.environ) -> Credentials:
    """From the environment or the file; raise `CommandFailed` with the remedy otherwise."""
    return _from_environment(environ) or load_login(environ)


def load_login(environ: Mapping[str, str] = os.environ) -> Credentials:
    """What `spikeguard login` or `up` kept; raise `CommandFailed` with the remedy otherwise."""
    path = credentials_path(environ)
    try:
        stored = json.loads(read_own(path))
        return Credentials(stored["server"], stored["token"], stored.get("name"), str(path))
    except FileNotFoundError:
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
        token, source = Path(file).read_text().strip(), f"SPIKEGUARD_TOKEN_FILE ({file})"
    return Credentials(server.rstrip("/"), token, source=source) if server and token else None
