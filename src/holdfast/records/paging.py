"""Listings in pages: a page ends with a token, and the next one starts behind the row the token names.

A token names a row and not a count, so that rows added or removed meanwhile are neither shown twice nor skipped. It
ends with a digest, so that one that was damaged or edited differs from one that we gave out; it keeps no secret.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar

from ..core.errors import ConfigurationError

DEFAULT_LIMIT = 50
MAX_LIMIT = 100
_DIGEST_BYTES = 9

_Item = TypeVar("_Item")


class WrongTokenError(ConfigurationError):
    """A token is not from the listing that it is to go on with. A retry cannot help; begin without one."""


@dataclass(frozen=True, slots=True)
class Page(Generic[_Item]):
    """Some rows, and the token to go on with; None when these were the last.

    ``unreadable`` has a sentence for each row of the page that cannot be read, which ``items`` lacks.
    """

    items: list[_Item]
    continuation_token: str | None
    unreadable: tuple[str, ...] = ()


def checked_limit(limit: int) -> int:
    """Return ``limit`` when a page may be that long.

    Raises:
        ConfigurationError: it may not.
    """
    if not 1 <= limit <= MAX_LIMIT:
        raise ConfigurationError(f"A page cannot have {limit} rows: the limit must be between 1 and {MAX_LIMIT}.")
    return limit


def token_of(kind: str, *position: object) -> str:
    """Return the token that names the row at ``position`` in a listing of ``kind``."""
    content = json.dumps([kind, *position], separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    return base64.urlsafe_b64encode(content + _digest(content)).decode("ascii").rstrip("=")


def position_in(kind: str, token: str, types: Sequence[type]) -> list[object]:
    """Return the position that ``token_of`` was given.

    Raises:
        ConfigurationError: the token is not from such a listing.
    """
    try:
        content = base64.b64decode(_padded(token), altchars=b"-_", validate=True)
        content, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
        found = json.loads(content) if digest == _digest(content) else [None]
        if found[0] == kind and [type(part) for part in found[1:]] == list(types):
            return list(found[1:])
    except (ValueError, LookupError, TypeError, RecursionError, binascii.Error):
        pass
    raise wrong_token(kind, token)


def moment_in(kind: str, token: str, text: object) -> datetime:
    """Return the moment a position holds as text.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise wrong_token(kind, token) from None
    if moment.tzinfo is None:
        raise wrong_token(kind, token)
    return moment


def wrong_token(kind: str, token: str) -> WrongTokenError:
    """Return the error for a token that is not from a listing of ``kind``."""
    return WrongTokenError(
        f"'{token[:40]}' is not a continuation token of the {kind}. Take it from the end of the page before."
    )


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:_DIGEST_BYTES]


def _padded(token: str) -> str:
    return token + "=" * (-len(token) % 4)
