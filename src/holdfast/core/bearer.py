"""Bearer tokens, known to a server by their SHA-256 only, and the addresses that only this machine can reach.

Reading a server's token file gives nobody a token. A token is long and random, so a plain hash is enough; a password
would need a slow one.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from pathlib import Path
from typing import NamedTuple

from .errors import ConfigurationError

_HASH = re.compile(r"[0-9a-f]{64}")
_BEARER = "bearer "


class HashedToken(NamedTuple):
    """A line of a token file: the SHA-256 of a token, and the words behind it."""

    line: int
    sha256: str
    words: list[str]


def token_hash(token: str) -> str:
    """Return what a server keeps of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def bearer_token(authorization: str | None) -> str | None:
    """Return the token that a header ``Authorization`` presents; None when it presents none."""
    if authorization is None or not authorization.lower().startswith(_BEARER):
        return None
    return authorization[len(_BEARER) :].strip()


def hashed_tokens(text: str, where: str) -> list[HashedToken]:
    """Return the tokens of a text: one SHA-256 in hexadecimal per line, with words behind it; ``#`` begins a comment.

    Raises:
        ConfigurationError: there is none, or a line is something else. It does not say what the line holds.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        sha256 = words[0].lower()
        if _HASH.fullmatch(sha256) is None:
            raise ConfigurationError(
                f"Line {number} of {where} does not begin with the SHA-256 of a token, which is 64 hexadecimal digits. "
                "Keep the token itself out of it."
            )
        found.append(HashedToken(number, sha256, words[1:]))
    if not found:
        raise ConfigurationError(f"{where[0].upper()}{where[1:]} holds no token. Write the SHA-256 of one into it.")
    return found


def read_file(what: str, path: Path) -> bytes:
    """Return a file's content.

    Raises:
        ConfigurationError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be read: {error.strerror or error}.") from error


def is_loopback_host(host: str) -> bool:
    """Return whether a host, a name or an address, can be reached from this machine only."""
    bare = host.strip("[]")
    if bare == "localhost":
        return True
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
