"""Where the outbox of a run lies: the run's directory, or a folder of this machine.

Invariants
- Where several users may write nothing lies that one of them could have put there or exchange.
- What kind of file system a path lies on is read from what the kernel keeps of its mounts; where
  that cannot be read nothing is known.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from spikeguard.faults import log
from spikeguard.settings import Settings
from spikeguard_protocol import RunId

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = re.compile(
    "9p|afs|beegfs|ceph|cifs|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|orangefs|panfs|pvfs2|smb3|smbfs"
    r"|virtiofs|wekafs|fuse\.(alluxio|beegfs|blobfuse2?|ceph|ceph-fuse|curvefs|cvmfs2|davfs2?|dfuse"
    "|gcsfuse|glusterfs|goofys|juicefs|mfs|moosefs|mount-s3|mountpoint-s3|objectivefs|rclone|s3fs"
    "|seaweedfs|sshfs|weed)",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


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


def warn_of_network(place: Path) -> None:
    """Say in the log that a network's file system may hang, where `place` lies on one."""
    kind = network_kind(place)
    if kind is not None:
        log.warning(
            "the outbox in %s lies on a network's file system (%s): if it hangs nothing is told "
            "until it is back, and locks may not hold between machines. Set "
            "SPIKEGUARD_OUTBOX_DIRECTORY to a disk of this machine; the journal stays where it is",
            place,
            kind,
        )


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


def network_kind(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The kind of the network's file system that `path` lies on or will; None: none is known of."""
    try:
        kind = _kind_at(os.path.realpath(path), mounts.read_text(errors="replace"))
    except OSError:
        return None
    return kind if NETWORK.fullmatch(kind) else None


def _kind_at(path: str, mounts: str) -> str:
    """Of the mount that holds `path`: the deepest, and of several at one place the last."""
    place, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        other = _unescaped(fields[4]) if len(fields) > 4 else ""
        if _holds(other, path) and len(other) >= len(place):
            place, kind = other, right.split(" ", 1)[0]
    return kind


def _holds(place: str, path: str) -> bool:
    return bool(place) and (path == place or path.startswith(place.rstrip("/") + "/"))


def _unescaped(text: str) -> str:
    """Blanks and the like are written in octal there."""
    return _ESCAPED.sub(lambda code: chr(int(code[1], 8)), text)
