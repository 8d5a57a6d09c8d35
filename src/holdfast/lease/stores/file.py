"""A document store in a directory of one machine, safe between its processes and threads."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from holdfast.core.clock import Clock, SystemClock, new_id
from holdfast.core.errors import (
    Ambiguous,
    ConfigurationError,
    Conflict,
    StateStoreError,
    Unavailable,
    UnreadableStateError,
)
from holdfast.core.private_files import private
from holdfast.lease.documents import ETag, Snapshot, Written

from ._names import checked_document_name, decoded_name, encoded_name

try:
    import fcntl
except ImportError as error:  # pragma: no cover - only where there is no POSIX lock
    raise ConfigurationError(
        "FileDocumentStore needs POSIX file locks, which this system lacks; use SqlDocumentStore on SQLite."
    ) from error

_LOCK = "~lock"  # encoded names never hold a "~", so these two can never be a document
_TEMPORARY = "~writing"
_LONGEST_FILE_NAME = 200
_LONG_FILE_NAME = re.compile(r".{100}~[0-9a-f]{64}")
_LOCK_POLL_SECONDS = 0.005
_BROKEN = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ENOENT}


class FileDocumentStore:
    """One file per document in ``directory``, which is created when it is missing.

    For one machine with a local file system only: **not** for NFS, SMB or a folder that is synchronised,
    where neither the lock nor the rename is dependable. The machine's clock is the store's time.

    Files are their owner's alone (0600): processes that share the directory run as one user.

    The first line of a file holds the document's name and etag, the rest is its content, so one rename
    changes both.
    Writes take an exclusive lock on the directory, compare the etag, write a temporary file, fsync it, rename
    it over the old one and fsync the directory. A process that dies at any point leaves the old document or
    the new one, whole; the kernel frees its lock. Reads take a shared lock, so what was read is on disk.

    Args:
        directory: where the files are.
        lock_timeout_seconds: how long a call waits for another process before it raises ``Unavailable``.
        clock: where time comes from; the machine's clock when None.

    Raises:
        ConfigurationError: the directory cannot be created or written.
    """

    skew_margin_seconds: float | None = None

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        lock_timeout_seconds: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        self._directory = Path(directory)
        self._lock_timeout_seconds = lock_timeout_seconds
        self._clock = clock if clock is not None else SystemClock()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            os.close(private(self._directory / _LOCK, os.O_RDONLY | os.O_CREAT))
        except OSError as error:
            raise ConfigurationError(
                f"The state directory '{self._directory}' cannot be used ({error.strerror}): "
                "give a directory that this process may create and write."
            ) from error

    def read(self, name: str) -> Snapshot | None:
        """Return the document, or None when there is none.

        Raises:
            Unavailable: the directory stayed locked, or the disk failed.
            UnreadableStateError: the file is not one that this store wrote.
        """
        path = self._path(name)
        with self._locked(fcntl.LOCK_SH, name):
            found = self._load(path, name)
            return None if found is None else Snapshot(*found, store_time=self._clock.now())

    def create(self, name: str, content: bytes) -> Written:
        """Write a document that must not exist yet.

        Raises:
            Conflict: it exists; nothing was changed.
            Unavailable: the directory stayed locked, or the disk is full or failed; nothing was changed.
            Ambiguous: the document is in place, but the directory could not be forced to disk.
        """
        path = self._path(name)
        with self._locked(fcntl.LOCK_EX, name):
            if self._load(path, name) is not None:
                raise Conflict(f"The document '{name}' already exists in '{self._directory}'; nothing was written.")
            return self._put(path, name, content)

    def replace(self, name: str, content: bytes, if_match: ETag) -> Written:
        """Overwrite the document read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
            Unavailable: the directory stayed locked, or the disk is full or failed; nothing was changed.
            Ambiguous: the document is in place, but the directory could not be forced to disk.
        """
        path = self._path(name)
        with self._locked(fcntl.LOCK_EX, name):
            self._check(path, name, if_match)
            return self._put(path, name, content)

    def delete(self, name: str, if_match: ETag) -> None:
        """Delete the document read with ``if_match``.

        Raises:
            Conflict: it changed since, or is gone; nothing was changed.
            Unavailable: the directory stayed locked, or the disk failed; nothing was changed.
            Ambiguous: the document is gone, but the directory could not be forced to disk.
        """
        path = self._path(name)
        with self._locked(fcntl.LOCK_EX, name):
            self._check(path, name, if_match)
            path.unlink()
            self._force_directory(name)

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with ``prefix``, in ascending order, as they were at the call.

        Raises:
            Unavailable: the directory stayed locked, or the disk failed.
            UnreadableStateError: a file is not one that this store wrote.
        """
        with self._locked(fcntl.LOCK_SH, prefix):
            names = [_name_of(path) for path in self._directory.iterdir()]
            return iter(sorted(name for name in names if name is not None and name.startswith(prefix)))

    def _path(self, name: str) -> Path:
        encoded = encoded_name(checked_document_name(name))
        if len(encoded) > _LONGEST_FILE_NAME:
            encoded = f"{encoded[:100]}~{hashlib.sha256(encoded.encode()).hexdigest()}"
        return self._directory / encoded

    def _load(self, path: Path, name: str) -> tuple[bytes, ETag] | None:
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            return None
        stored_name, etag, content = _parsed(raw, path)
        if stored_name != name:
            raise StateStoreError(
                f"The file '{path}' holds the document '{stored_name}', not '{name}': this file system does "
                "not tell upper from lower case. Rename one of the two."
            )
        return content, etag

    def _check(self, path: Path, name: str, if_match: ETag) -> None:
        found = self._load(path, name)
        if found is None or found[1] != if_match:
            fact = "is gone" if found is None else "has changed"
            raise Conflict(
                f"The document '{name}' {fact} in '{self._directory}' since it was read; nothing was written."
            )

    def _put(self, path: Path, name: str, content: bytes) -> Written:
        etag = ETag(new_id())
        temporary = self._directory / _TEMPORARY  # one is enough: its writer holds the directory's lock
        with open(temporary, "wb", opener=private) as file:
            file.write(json.dumps({"document": name, "etag": etag}).encode() + b"\n" + content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        self._force_directory(name)
        return Written(etag, self._clock.now())

    def _force_directory(self, name: str) -> None:
        try:
            descriptor = os.open(self._directory, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Ambiguous(
                f"The write of '{name}' in '{self._directory}' may be undone by a power cut "
                f"({error.strerror}): read it again to learn what holds."
            ) from error

    @contextmanager
    def _locked(self, kind: int, name: str) -> Iterator[None]:
        """Hold the directory's lock, and translate what the disk says."""
        try:
            descriptor = os.open(self._directory / _LOCK, os.O_RDONLY)  # a new one each time excludes threads
            try:
                self._wait_for_lock(descriptor, kind)
                yield
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # also when a forked child still holds the descriptor
                os.close(descriptor)
        except OSError as error:
            kind_of_error = StateStoreError if error.errno in _BROKEN else Unavailable
            raise kind_of_error(
                f"The document '{name}' in '{self._directory}' could not be reached ({error.strerror}); "
                "nothing was written. Check the directory, its permissions and the free space."
            ) from error

    def _wait_for_lock(self, descriptor: int, kind: int) -> None:
        deadline = self._clock.monotonic() + self._lock_timeout_seconds
        never = Event()
        while True:
            try:
                return fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic() >= deadline:
                    raise Unavailable(
                        f"The state directory '{self._directory}' has been locked by another process for "
                        f"{self._lock_timeout_seconds:g} s; nothing was written. Look for a stopped process."
                    ) from None
                self._clock.wait(never, _LOCK_POLL_SECONDS)


def _name_of(path: Path) -> str | None:
    """Return the document's name, or None when the file is no document of this store."""
    if _LONG_FILE_NAME.fullmatch(path.name):
        return _parsed(path.read_bytes(), path)[0]
    try:
        name = decoded_name(path.name)
    except UnicodeDecodeError:
        return None
    return name if encoded_name(name) == path.name else None


def _parsed(raw: bytes, path: Path) -> tuple[str, ETag, bytes]:
    header, _, content = raw.partition(b"\n")
    try:
        fields = json.loads(header)
        return str(fields["document"]), ETag(str(fields["etag"])), content
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableStateError(
            f"The file '{path}' is not a Holdfast document: its first line names no document and etag. "
            "Nothing was changed. Restore it from a backup, or move it out of the directory."
        ) from error
