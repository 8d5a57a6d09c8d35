"""Who may do what: bearer tokens with a name, for the audit, and roles."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from ..core.accepted_tokens import EXPIRES, AcceptedTokens, expiry
from ..core.bearer import HashedToken, token_hash
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
    expires_at: datetime | None = None

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
        line = f"{self.sha256} {self.name} {','.join(sorted(self.roles))}"
        return line if self.expires_at is None else f"{line} {EXPIRES}{self.expires_at:%Y-%m-%dT%H:%M:%SZ}"


class ApiTokens(AcceptedTokens[ApiToken]):
    """The tokens that the API accepts: on each line of a file the SHA-256 of one, a name, and roles."""

    @classmethod
    def _of_line(cls, token: HashedToken, at: str) -> ApiToken:
        words = list(token.words)
        expires_at = expiry(words.pop(), at) if len(words) == 3 and words[2].startswith(EXPIRES) else None
        if len(words) != 2:
            raise ConfigurationError(
                f"{at} must hold the SHA-256 of a token, a name and roles, such as 'anne read,operate', perhaps "
                f"'{EXPIRES}2027-01-31', and nothing else: it has {len(words)} words behind the hash, not 2."
            )
        roles = _roles(words[1], at)
        return ApiToken(name=words[0], sha256=token.sha256, roles=roles, expires_at=expires_at)

    def caller(self, authorization: str | None) -> Caller | None:
        """Return whose token a header ``Authorization`` presents."""
        known = self.presented(authorization)
        return None if known is None else Caller(known.name, known.roles)


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
