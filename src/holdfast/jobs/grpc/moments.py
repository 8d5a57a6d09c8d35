"""Times on the wire."""

from __future__ import annotations

from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from ...core.errors import ConfigurationError


def timestamp_of(moment: datetime) -> Timestamp:
    """Return a moment as a message. A database's time without a zone is UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    stamp = Timestamp()
    stamp.FromDatetime(aware)
    return stamp


def moment_of(what: str, stamp: Timestamp) -> datetime:
    """Return the moment of a message, aware.

    Raises:
        ConfigurationError: no calendar has it.
    """
    try:
        moment: datetime = stamp.ToDatetime(tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        raise ConfigurationError(f"{what} is not a moment between the years 1 and 9999: {error}.") from error
    return moment
