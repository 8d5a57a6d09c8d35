"""Who may do what: bearer tokens with a name, for the audit, and roles."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

from ..core.bearer import bearer_token, hashed_tokens, read_file, token_hash
from ..core.clock import new_id
from ..core.errors import ConfigurationError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
_HASH = re.compile(r"[0-9a-f]{64}")
_TOKEN_DIGITS = 64


class Role(StrEnum):
    """What a token is for. Each of the others may read, too; ``admin`` may do everything."""

    READ = "read"
    PAYLOAD = "payload"
    OPERATE = "operate"
    ADMIN = "admin"


EVERY_ROLE = frozenset(Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sends a request, under the name that the audit shows."""

    name: str
    roles: frozenset[Role]

    def may(self, role: Role) -> bool:
        """Return whether the caller has a role, given or implied."""
        return role in self.roles or Role.ADMIN in self.roles or role is Role.READ


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """A token that is accepted, known by its SHA-256."""

    name: str
    sha256: str
    roles: frozenset[Role]

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ConfigurationError(
                f"'{self.name[:100]}' cannot name a token: use up to 100 letters, digits and . _ @ + -, and begin with "
                "a letter or a digit."
            )
        if _HASH.fullmatch(self.sha256) is None:
            raise ConfigurationError(
                f"The token '{self.name}' needs its SHA-256, which is 64 hexadecimal digits. Keep the token itself out "
                "of the configuration."
            )
        if not self.roles:
            raise ConfigurationError(f"The token '{self.name}' has no role. Give it one of {_known_roles()}.")

    @property
    def line(self) -> str:
        """Return the token's line in a token file."""
        return f"{self.sha256} {self.name} {','.join(sorted(self.roles))}"


class ApiTokens:
    """The tokens that are accepted. One name may have several, so that a token can be replaced without a gap."""

    def __init__(self, tokens: Iterable[ApiToken] = ()) -> None:
        self._tokens = tuple(tokens)

    def __bool__(self) -> bool:
        return bool(self._tokens)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the tokens of a file: on each line the SHA-256 of a token, a name, and roles with commas between.

        Raises:
            ConfigurationError: the file cannot be read, holds no token, or a line is something else.
        """
        return cls.parse(read_file("The token file", path).decode(errors="replace"), f"the token file {path}")

    @classmethod
    def parse(cls, text: str, where: str = "the tokens") -> Self:
        """Return the tokens of a text in the form of a token file, such as a setting of a function app.

        Raises:
            ConfigurationError: it holds no token, or a line is something else.
        """
        found = []
        for line, sha256, words in hashed_tokens(text, where):
            if len(words) != 2:
                raise ConfigurationError(
                    f"Line {line} of {where} must hold the SHA-256 of a token, a name and roles, such as 'anne "
                    f"read,operate', and nothing else: it has {len(words)} words behind the hash, not 2."
                )
            found.append(ApiToken(name=words[0], sha256=sha256, roles=_roles(words[1], f"Line {line} of {where}")))
        return cls(found)

    def caller(self, authorization: str | None) -> Caller | None:
        """Return whose token a header ``Authorization`` presents. Every hash is compared, in the same time."""
        token = bearer_token(authorization)
        if token is None:
            return None
        presented = token_hash(token)
        found = [known for known in self._tokens if hmac.compare_digest(presented, known.sha256)]
        return Caller(found[0].name, found[0].roles) if found else None


def new_token(name: str, roles: Iterable[Role]) -> tuple[str, ApiToken]:
    """Return a new token, which is kept nowhere, and what a server keeps of it.

    Raises:
        ConfigurationError: it cannot have that name, or has no role.
    """
    token = f"hf_{new_id(_TOKEN_DIGITS)}"
    return token, ApiToken(name=name, sha256=token_hash(token), roles=frozenset(roles))


def _roles(text: str, where: str) -> frozenset[Role]:
    try:
        return frozenset(Role(word) for word in text.lower().split(","))
    except ValueError:
        raise ConfigurationError(
            f"{where} names roles that do not exist. Choose from {_known_roles()}, with commas between."
        ) from None


def _known_roles() -> str:
    return ", ".join(Role)
