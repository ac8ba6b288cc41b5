"""What kind of file system a path lies on: one of this machine, or one behind a network.

Law: reads only what the kernel keeps of its mounts; where that cannot be read nothing is known.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")
NETWORK = re.compile(
    "9p|afs|beegfs|ceph|cifs|gfs2|glusterfs|gpfs|lustre|nfs4?|ocfs2|orangefs|panfs|pvfs2|smb3|smbfs"
    r"|virtiofs|wekafs|fuse\.(alluxio|beegfs|blobfuse2?|ceph|ceph-fuse|curvefs|cvmfs2|davfs2?|dfuse"
    "|gcsfuse|glusterfs|goofys|juicefs|mfs|moosefs|mount-s3|mountpoint-s3|objectivefs|rclone|s3fs"
    "|seaweedfs|sshfs|weed)",
    re.IGNORECASE,
)
_ESCAPED = re.compile(r"\\([0-7]{3})")


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
