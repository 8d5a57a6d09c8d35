"""Who may connect, and when a server or a worker refuses to talk in the clear.

The server knows tokens by their SHA-256 only, see ``core.bearer``; how they end, see ``core.accepted_tokens``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from ...core.accepted_tokens import AcceptedTokens, expiry
from ...core.bearer import HashedToken, is_loopback_host, token_hash
from ...core.errors import ConfigurationError
from ..settings import own_topic

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,49}")
_LARGEST_PORT = 65_535
_KNOWN_WORDS = frozenset({"name", "scope", "topics", "expires"})
_HTTP_ROLES = frozenset({"read", "payload", "operate", "admin"})  # those of api.tokens.Role, which is not imported here


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The server's certificate and key (PEM files). With ``client_ca_file``, workers need a certificate of that CA."""

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """Whom a worker trusts: the CAs of ``ca_file`` (PEM), else those of the machine; and its own certificate if any."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigurationError("A worker's certificate needs its key, and the key its certificate. Give both.")


class Scope(StrEnum):
    """What a token is for."""

    WORK = "work"
    """Taking jobs, beating for them and reporting them."""

    ENQUEUE = "enqueue"
    """Adding jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """Who calls: under which name its claims are kept, and what it may do.

    A client without a name shares the claims of all others without one. ``topics`` None stands for every topic.
    ``key`` is what its calls are counted by; it is empty where everybody is let in.
    """

    name: str | None = None
    scopes: frozenset[Scope] = frozenset(Scope)
    topics: frozenset[str] | None = None
    key: str = field(default="", compare=False)

    def require(self, scope: Scope) -> None:
        """Let the client make calls of a kind.

        Raises:
            Forbidden: its token is not for that.
        """
        if scope not in self.scopes:
            raise Forbidden(f"{self._who} is not for '{scope}'. Give it that scope in the token file, or use another.")

    def require_topics(self, topics: Iterable[str]) -> None:
        """Let the client work for topics, or add jobs to them.

        Raises:
            Forbidden: its token is not for one of them.
        """
        foreign = set() if self.topics is None else set(topics) - self.topics
        if foreign:
            raise Forbidden(
                f"{self._who} is not for the topic '{min(foreign)}'. Add it to its topics in the token file, or use "
                "another."
            )

    @property
    def _who(self) -> str:
        return f"The token '{self.name}'" if self.name else "This token"


class Forbidden(ConfigurationError):  # noqa: N818 - it says what is so, and becomes PERMISSION_DENIED
    """A client is known, and what it asks for is not for it."""


ANYBODY = Client()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsToken:
    """A token that is accepted, known by its SHA-256, and whom it stands for."""

    sha256: str
    client: Client = ANYBODY
    expires_at: datetime | None = None


class Tokens(AcceptedTokens[JobsToken]):
    """The tokens that the server accepts. Without any, everybody is let in.

    On each line of a file the SHA-256 of a token, then ``name=``, ``scope=work,enqueue`` and ``topics=a,b`` as far as
    it is to be narrowed down, and ``expires=`` if it ends; other words are a note.
    """

    @classmethod
    def of(cls, *tokens: str) -> Self:
        """Return what accepts these tokens, each for everything."""
        return cls([JobsToken(sha256=token_hash(token)) for token in tokens])

    @classmethod
    def _of_line(cls, token: HashedToken, at: str) -> JobsToken:
        said = dict(word.split("=", 1) for word in token.words if "=" in word)
        if unknown := said.keys() - _KNOWN_WORDS:
            raise ConfigurationError(
                f"{at} says '{min(unknown)}=', which means nothing. Use name=, scope=, topics= and expires=."
            )
        if "scope" not in said:
            _check_note(token.words, at)
        ends = expiry(said["expires"], at) if "expires" in said else None
        return JobsToken(sha256=token.sha256, client=_client(said, at), expires_at=ends)

    def client(self, authorization: str | None) -> Client | None:
        """Return who calls with this header; None when nobody known does."""
        if not self:
            return ANYBODY
        known = self.presented(authorization)
        return None if known is None else replace(known.client, key=known.client.name or known.sha256)


def _check_note(words: Sequence[str], at: str) -> None:
    """Let no line of the HTTP API's token file pass for one that may do everything here.

    Raises:
        ConfigurationError: a word of the note is a list of the HTTP API's roles.
    """
    roles = next((word for word in words if set(word.lower().split(",")) <= _HTTP_ROLES), None)
    if roles is not None:
        raise ConfigurationError(
            f"{at} says '{roles}', as lines of the HTTP API's token file do, and no scope=: here that token could take "
            "and add jobs. Use another file, or write what it is for, such as scope=work."
        )


def _client(said: Mapping[str, str], line: str) -> Client:
    name, scopes, topics = said.get("name"), said.get("scope"), said.get("topics")
    if name is not None and _NAME.fullmatch(name) is None:
        raise ConfigurationError(f"{line}: '{name[:50]}' cannot be a name. Use at most 50 letters, digits, . _ and -.")
    wrong = {word for word in _listed(scopes) if word not in list(Scope)}
    if wrong or scopes == "":
        raise ConfigurationError(f"{line}: '{scopes}' is no scope. Use {' and '.join(Scope)}, with a comma between.")
    if topics == "":
        raise ConfigurationError(f"{line} names no topic behind 'topics='. Name one, or leave it out for every topic.")
    return Client(
        name=name,
        scopes=frozenset(Scope) if scopes is None else frozenset(map(Scope, _listed(scopes))),
        topics=None if topics is None else frozenset(own_topic(topic) for topic in _listed(topics)),
    )


def _listed(words: str | None) -> list[str]:
    return words.split(",") if words else []


def is_loopback(address: str) -> bool:
    """Return whether an address (``host:port``, ``unix:…``) can be reached from this machine only."""
    if address.startswith("unix:"):
        return True
    return is_loopback_host(address.rsplit("/", 1)[-1].rpartition(":")[0])


def host_of_peer(peer: str) -> str:
    """Return the host of a peer as gRPC names it (``ipv4:127.0.0.1:4711``, ``ipv6:%5B::1%5D:4711``, ``unix:…``)."""
    kind, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else kind


def check_listening(address: str, *, has_tls: bool, has_tokens: bool, is_insecure: bool) -> None:
    """Refuse to serve a network without encryption and authentication.

    Raises:
        ConfigurationError: one of them is missing.
    """
    _check_address(address)
    if is_insecure or is_loopback(address) or (has_tls and has_tokens):
        return
    missing = [word for word, is_there in (("TLS", has_tls), ("a token file", has_tokens)) if not is_there]
    without = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
    raise ConfigurationError(
        f"{address} can be reached from other machines, and {without}: anyone could read, run and add jobs. "
        "Give --tls-cert, --tls-key and --token-file, listen on 127.0.0.1, or insist with --insecure."
    )


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if address.startswith("unix:") or (host and colon and port.isdecimal() and int(port) <= _LARGEST_PORT):
        return
    raise ConfigurationError(
        f"'{address}' is no address to listen on. Give HOST:PORT with a port up to {_LARGEST_PORT}."
    )


def check_sending(target: str, *, has_tls: bool, has_token: bool, is_insecure: bool) -> None:
    """Refuse to send a token where others can read it.

    Raises:
        ConfigurationError: the connection is not encrypted and leaves the machine.
    """
    if has_token and not (has_tls or is_insecure or is_loopback(target)):
        raise ConfigurationError(
            f"The token for {target} would travel readable by others. Pass tls=ClientTls(…), or insist with "
            "insecure=True."
        )
