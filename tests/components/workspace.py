"""Private directories for servers and workers, removed even when a test run was killed.

They live in memory where there is room, because nothing here has to survive the machine and creating databases is
many times faster there, else under /tmp. Servers that run as another user cannot enter pytest's own temporary
directory (mode 700), and the path of a Unix socket must be short. A run holds a lock in its
directory; the next run removes every directory whose lock nobody holds any more.
"""

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

MEMORY = Path("/dev/shm")
MEMORY_NEEDED_BYTES = 8 * 1024**3


def _in_memory() -> bool:
    """Return whether there is a file system in memory with room for the servers of a whole run."""
    return os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_NEEDED_BYTES


PARENT = MEMORY if _in_memory() else Path("/tmp")
PREFIX = "holdfast-"
LOCK = "owner.lock"
GRACE_SECONDS = 5.0


@functools.cache
def workspace() -> Path:
    """Return this run's directory, made on first use and removed at exit."""
    remove_abandoned()
    root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=PARENT))
    root.chmod(0o711)
    lock = (root / LOCK).open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    atexit.register(_remove, root, lock, os.getpid())
    return root


def private_directory(purpose: str) -> Path:
    """Return a new empty directory, which servers running as other users can be given."""
    directory = Path(tempfile.mkdtemp(prefix=f"{purpose}-", dir=workspace()))
    directory.chmod(0o711)
    return directory


def remove_abandoned() -> None:
    """Remove the directories of runs that were killed; one just made may not hold its lock yet."""
    newest = time.time() - GRACE_SECONDS
    for lock in PARENT.glob(f"{PREFIX}*/{LOCK}"):
        try:
            if lock.stat().st_mtime < newest and _is_unlocked(lock):
                shutil.rmtree(lock.parent, ignore_errors=True)
        except OSError:
            continue  # another run removed it first, or it belongs to another user


def _is_unlocked(path: Path) -> bool:
    with path.open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _remove(root: Path, lock: IO[str], owner: int) -> None:
    if os.getpid() != owner:
        return  # a forked child must not remove what its parent uses
    shutil.rmtree(root, ignore_errors=True)
    lock.close()
