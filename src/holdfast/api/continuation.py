"""Continuation tokens that nobody else can make: the token of a listing, signed.

A token of ``records.paging`` names a row and can be written by anyone. Signed, it is ours or it is refused, so what
comes back is what we gave out, for the listing we gave it out for.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from ..core.clock import new_id
from ..core.errors import ConfigurationError
from ..records.paging import Page, WrongTokenError
from .errors import ApiError

PARAMETER = "continuationToken"
_SHORTEST_KEY = 16
_Item = TypeVar("_Item")


class Signer:
    """Signs continuation tokens and takes back its own.

    Args:
        key: shared by all instances that serve one API; left out, a random one, so that the tokens of this process end
            with it.

    Raises:
        ConfigurationError: the key is too short to be a secret.
    """

    def __init__(self, key: str | None = None) -> None:
        if key is not None and len(key) < _SHORTEST_KEY:
            raise ConfigurationError(
                f"The key for continuation tokens has {len(key)} characters. Use at least {_SHORTEST_KEY} random ones."
            )
        self._key = (key or new_id(64)).encode("utf-8")

    def page(self, listing: str, token: str | None, page: Callable[[str | None], Page[_Item]]) -> Page[_Item]:
        """Return the page of a listing behind a token that we gave out, with the token to go on with.

        Raises:
            ApiError: 400, the token is none of ours, or from a listing with another filter: not every table can take up
                any filter.
        """
        after = self.checked(listing, token)
        try:
            found = page(after)
        except WrongTokenError as error:
            raise ApiError.validation(
                f"The {PARAMETER} is from a listing with another filter. Keep the filter from page to page, or begin "
                "without a token.",
                PARAMETER,
            ) from error
        return replace(found, continuation_token=self.signed(listing, found.continuation_token))

    def signed(self, listing: str, token: str | None) -> str | None:
        """Return a listing's token as it is given out; None when there is none."""
        return None if token is None else f"{token}.{self._signature(listing, token)}"

    def checked(self, listing: str, signed: str | None) -> str | None:
        """Return the token that was signed.

        Raises:
            ApiError: 400, the token is not one that was given out for this listing.
        """
        if signed is None:
            return None
        token, _, signature = signed.rpartition(".")
        if not hmac.compare_digest(signature.encode("utf-8"), self._signature(listing, token).encode("ascii")):
            raise ApiError.validation(
                f"The {PARAMETER} is not one that this server gave out for this listing. Take it unchanged from the "
                "page before, or begin without one.",
                PARAMETER,
            )
        return token

    def _signature(self, listing: str, token: str) -> str:
        digest = hmac.digest(self._key, f"{listing}\n{token}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode("ascii").rstrip("=")
