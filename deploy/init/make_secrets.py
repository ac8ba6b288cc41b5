"""Makes the stack's secrets once and hands each service the ones it needs.

Law: nothing that exists is ever overwritten, so running it again changes nothing. Every secret has
one master copy in the vault, which no other service mounts; a service's folder holds copies that
its user alone can read. Runs as root with the capability CHOWN and nothing else, without a network.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

# User ids as the images have them: the Dockerfiles make the first four, the rest are stock.
SERVER, TRAINER, POSTGRES, PROMETHEUS, GRAFANA = 10001, 10003, 999, 65534, 472

Render = Callable[[str], str]


def _as_it_is(secret: str) -> str:
    return secret


def _database_url(password: str, role: str = "spikeguard") -> str:
    return f"postgresql://{role}:{password}@postgres:5432/spikeguard"


def _owner_database_url(password: str) -> str:
    return _database_url(password, "spikeguard_owner")


@dataclass(frozen=True, slots=True)
class Copy:
    """One file in one service's folder, made from one secret of the vault."""

    secret: str
    folder: str
    file: str
    owner: int  # user id of the only reader
    render: Render = _as_it_is


COPIES: tuple[Copy, ...] = (
    Copy("postgres_password", "postgres", "superuser_password", POSTGRES),
    Copy("postgres_password", "roles", "superuser_password", POSTGRES),
    Copy("database_password", "roles", "database_password", POSTGRES),
    Copy("owner_password", "roles", "owner_password", POSTGRES),
    Copy("database_password", "server", "database_url", SERVER, _database_url),
    Copy("database_password", "migrate", "database_url", SERVER, _database_url),
    Copy("owner_password", "migrate", "owner_database_url", SERVER, _owner_database_url),
    Copy("trainer_token", "migrate", "trainer_token", SERVER),
    Copy("prometheus_token", "migrate", "prometheus_token", SERVER),
    Copy("trainer_token", "trainer", "token", TRAINER),
    Copy("prometheus_token", "prometheus", "token", PROMETHEUS),
    Copy("grafana_admin_password", "grafana", "admin_password", GRAFANA),
    Copy("grafana_secret_key", "grafana", "secret_key", GRAFANA),
)


def new_secret() -> str:
    """32 random bytes as letters, digits, '-' and '_', so that it needs no quoting anywhere."""
    return secrets.token_urlsafe(32)


def write_once(path: Path, text: str, owner: int) -> bool:
    """Write `text` for `owner` alone, whole or not at all; False if `path` is there already."""
    if path.exists():
        return False
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
        os.fchown(file.fileno(), owner, owner)
    fresh.rename(path)
    return True


def fill_vault(vault: Path, copies: tuple[Copy, ...]) -> list[str]:
    """Make the secrets that the vault lacks; returns their names."""
    names = sorted({copy.secret for copy in copies})
    return [name for name in names if write_once(vault / name, new_secret(), os.geteuid())]


def hand_out(vault: Path, folders: Path, copies: tuple[Copy, ...]) -> list[str]:
    """Give every folder the copies that it lacks; returns their paths below `folders`."""
    made = []
    for copy in copies:
        text = copy.render((vault / copy.secret).read_text())
        if write_once(folders / copy.folder / copy.file, text, copy.owner):
            made.append(f"{copy.folder}/{copy.file}")
    return made


def main(root: Path, copies: tuple[Copy, ...] = COPIES) -> int:
    """Fill `root`/vault and the services' folders beside it; tells what it made, never a value."""
    made = fill_vault(root / "vault", copies)
    copied = hand_out(root / "vault", root, copies)
    print(f"secrets made: {', '.join(made) or 'none, all were there'}")
    print(f"copies handed out: {', '.join(copied) or 'none, all were there'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
