"""The tokens that a server accepts, for whichever protocol: they may expire, and their file is read when it changes."""

from __future__ import annotations

import hmac
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

from .bearer import HashedToken, bearer_token, hashed_tokens, read_file, token_hash
from .clock import Clock, SystemClock
from .errors import ConfigurationError

EXPIRES = "expires="

_log = logging.getLogger("holdfast.tokens")


class KnownToken(Protocol):
    """A token as a server knows it."""

    @property
    def sha256(self) -> str:
        """Return the hash that it is known by."""
        ...

    @property
    def expires_at(self) -> datetime | None:
        """Return when it ends; None for never."""
        ...


Known = TypeVar("Known", bound=KnownToken)


class AcceptedTokens(ABC, Generic[Known]):
    """The tokens that are accepted. One holder may have several, so that a token can be replaced without a gap."""

    def __init__(self, tokens: Iterable[Known] = (), clock: Clock | None = None) -> None:
        self._tokens = tuple(tokens)
        self._clock = clock or SystemClock()
        self._file: Path | None = None
        self._seen: tuple[int, int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the tokens of a file, one on each line: its SHA-256, then what it is for.

        The file is read again when it has changed. One that cannot be used then changes nothing, and that is logged.

        Raises:
            ConfigurationError: the file cannot be read, holds no token, or a line is something else.
        """
        seen = _version_of(path)
        found = cls.parse(read_file("The token file", path).decode(errors="replace"), f"the token file {path}")
        found._file, found._seen = path, seen
        return found

    @classmethod
    def parse(cls, text: str, where: str = "the tokens") -> Self:
        """Return the tokens of a text in the form of a token file, such as a setting of a function app.

        Raises:
            ConfigurationError: it holds no token, or a line is something else.
        """
        return cls([cls._of_line(token, f"Line {token.line} of {where}") for token in hashed_tokens(text, where)])

    @classmethod
    @abstractmethod
    def _of_line(cls, token: HashedToken, at: str) -> Known:
        """Return the token of a line; ``at`` names the line.

        Raises:
            ConfigurationError: the line says something else.
        """

    def presented(self, authorization: str | None) -> Known | None:
        """Return the accepted token that a header ``Authorization`` presents; None when there is none.

        Every hash is compared, in the same time.
        """
        token = bearer_token(authorization)
        if token is None:
            return None
        self._read_again()
        presented, now = token_hash(token), self._clock.now()
        found = [known for known in self._tokens if hmac.compare_digest(presented, known.sha256)]
        return next((known for known in found if known.expires_at is None or now < known.expires_at), None)

    def _read_again(self) -> None:
        """Take over the file as it is now, if it has changed since it was read."""
        if self._file is None:
            return
        version = _version_of(self._file)
        if version == self._seen:
            return
        self._seen = version
        try:
            self._tokens = type(self).read(self._file)._tokens
            _log.info("The token file has changed and was read again: %d tokens.", len(self._tokens))
        except ConfigurationError as error:
            _log.error("The token file has changed and cannot be used, so the tokens stay as they were: %s", error)


def expiry(word: str, at: str) -> datetime:
    """Return the moment of a word such as ``expires=2027-01-31``; ``at`` names the line it is on.

    Raises:
        ConfigurationError: it is no date and no moment.
    """
    text = word.removeprefix(EXPIRES)
    try:
        if len(text) == len("2027-01-31"):
            return datetime.combine(date.fromisoformat(text), time(), UTC)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(f"{at} expires at no date. Write it as {EXPIRES}2027-01-31.") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _version_of(path: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file does; None when there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
