"""Who may connect, and when a server or a worker refuses to talk in the clear.

The server knows tokens by their SHA-256 only, see ``core.bearer``.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ...core.bearer import bearer_token, hashed_tokens, is_loopback_host, read_file, token_hash
from ...core.errors import ConfigurationError

_LARGEST_PORT = 65_535


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


class Tokens:
    """The tokens that are accepted. Without any, everybody is."""

    def __init__(self, hashes: Iterable[str] = ()) -> None:
        self._hashes = tuple(hashes)

    def __bool__(self) -> bool:
        return bool(self._hashes)

    @classmethod
    def of(cls, *tokens: str) -> Tokens:
        """Return what accepts these tokens."""
        return cls(token_hash(token) for token in tokens)

    @classmethod
    def read(cls, path: Path) -> Tokens:
        """Return the tokens of a file: one SHA-256 in hexadecimal per line, what follows it is a note.

        Raises:
            ConfigurationError: the file cannot be read, is empty, or a line is something else.
        """
        text = read_file("The token file", path).decode(errors="replace")
        return cls(token.sha256 for token in hashed_tokens(text, f"the token file {path}"))

    def accepts(self, authorization: str | None) -> bool:
        """Return whether a call with this header may go on. Every hash is compared, in the same time."""
        if not self._hashes:
            return True
        token = bearer_token(authorization)
        if token is None:
            return False
        presented = token_hash(token)
        matches = [hmac.compare_digest(presented, known) for known in self._hashes]
        return any(matches)


def is_loopback(address: str) -> bool:
    """Return whether an address (``host:port``, ``unix:…``) can be reached from this machine only."""
    if address.startswith("unix:"):
        return True
    return is_loopback_host(address.rsplit("/", 1)[-1].rpartition(":")[0])


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
