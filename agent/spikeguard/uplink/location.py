"""Where the outbox of a run lies: the run's directory, or a folder of this machine.

Law: where several users may write nothing lies that one of them could have put there or exchange.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from spikeguard.faults import log
from spikeguard.settings import Settings
from spikeguard_protocol import RunId


def outbox_home(home: Path, run: RunId, settings: Settings) -> Path:
    """The run's directory, or its place in the one that the settings name for all runs.

    That one may be for all users of a machine: what another one put there would be sent in this
    job's name, and a link in place of a file would lead to this job's own files.
    """
    if not settings.outbox_directory:
        return home
    top, names = Path(settings.outbox_directory), (run.project, run.name)
    try:
        problem = own_problem(top, *names, "outbox")
    except OSError:
        problem = None  # told where the outbox is opened
    if problem is None:
        return top.joinpath(*names)
    log.warning(
        "%s: the outbox lies in the run's directory instead. Let SPIKEGUARD_OUTBOX_DIRECTORY "
        "name a folder of this user's own",
        problem,
    )
    return home


def own_problem(top: Path, *names: str) -> str | None:
    """Why another user could have put there, or exchange, what lies in `top`/`names`; None: nobody.

    What is missing is made, for this user alone. `top` may be one that the system lets all write
    in, as /tmp: what is below is this user's. Whoever owns a folder above `top`, or a link on the
    way to it, can exchange all that is below.
    """
    top.mkdir(mode=0o700, parents=True, exist_ok=True)
    real = top.resolve()
    for place in (top.absolute(), real):
        for path in (place, *place.parents):
            if (owner := path.lstat().st_uid) not in _trusted(path, real):
                return f"{path} belongs to user {owner}"
    path = top
    for name in names:
        path /= name
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            return f"{path} is no folder"
        if found.st_uid != os.geteuid():
            return f"{path} belongs to user {found.st_uid}"
        if found.st_mode & stat.S_IWOTH:
            return f"all may write in {path}"
    return None


def _trusted(path: Path, top: Path) -> set[int]:
    """Whose folders do no harm there; whoever owns the root may be unmapped in a container."""
    ours = {0, os.geteuid()}
    return ours if path == top else ours | {os.stat("/").st_uid}
