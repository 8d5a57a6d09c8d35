"""Which horizon fits a cursor column: decided from what the database says, refused where nothing is sound."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Table

from ....core.errors import SourceConfigurationError
from ..inspection import CursorFacts
from . import mysql, postgres, sqlite
from .base import Horizon, NoSoundHorizonError, Unbounded

_DIALECTS = frozenset({"postgresql", "mysql", "mariadb", "sqlite"})
HORIZON_NAMES: tuple[str, ...] = ("auto", "xid8", "server_time", "identity", "none")


def choose(
    asked: str,
    dialect_name: str,
    table: Table | None,
    facts: CursorFacts | None,
    margin: timedelta,
    timezone: str | None = None,
) -> Horizon:
    """Return the horizon to read under. ``timezone`` is the zone in which a column without one is written, if declared.

    Raises:
        NoSoundHorizonError: ``auto`` was asked for and nothing is sound; the message says what to choose from.
        SourceConfigurationError: the horizon asked for does not fit the column or the database.
    """
    if asked not in HORIZON_NAMES:
        raise SourceConfigurationError(f"horizon={asked!r} is not known: use one of {', '.join(HORIZON_NAMES)}.")
    if asked == "none":
        return Unbounded()
    if table is None or facts is None:
        raise NoSoundHorizonError(
            "A query's cursor column cannot be inspected, so no horizon can be chosen for it. Poll the table instead, "
            "or pass lookback=… to re-read a window, or horizon='none' if rows commit in cursor order."
        )
    name = _fitting(dialect_name, table, facts) if asked == "auto" else asked
    horizon = _build(name, dialect_name, table, facts, margin, timezone)
    if timezone is not None and not (name == "server_time" and facts.holds_local_time(dialect_name)):
        raise SourceConfigurationError(
            f"cursor_timezone='{timezone}' is for a column that the database fills with local time, which "
            f"'{facts.name}' ({facts.type_name}, default: {facts.default or 'none'}) is not. Leave it out."
        )
    return horizon


def _fitting(dialect_name: str, table: Table, facts: CursorFacts) -> str:
    if dialect_name not in _DIALECTS:
        raise NoSoundHorizonError(
            f"No horizon is known for {dialect_name}, so a row that commits late would be skipped for ever. Choose "
            "one: lookback=<seconds> to re-read a window and drop what was delivered; horizon='none' if rows commit in "
            "cursor order."
        )
    if dialect_name == "postgresql" and facts.type_name == "xid8":
        return "xid8"
    if facts.generated_id:
        return "identity"
    if facts.has_server_time_default:
        return "server_time"
    raise NoSoundHorizonError(_refusal(dialect_name, table, facts))


def _refusal(dialect_name: str, table: Table, facts: CursorFacts) -> str:
    choices = (
        f"Choose one: horizon='server_time' if the database fills '{facts.name}' on every write (a default or trigger "
        "with the server's clock); lookback=<seconds> to re-read a window and drop what was delivered; horizon='none' "
        "if rows commit in cursor order."
    )
    if facts.is_integer and dialect_name == "sqlite":
        choices = "Declare it INTEGER PRIMARY KEY AUTOINCREMENT. " + choices
    return (
        f"Column '{facts.name}' of table '{table.name}' is not filled by the database as far as it tells (default: "
        f"{facts.default or 'none'}), so a row that commits late would be skipped for ever. {choices}"
    )


def _build(
    name: str, dialect_name: str, table: Table, facts: CursorFacts, margin: timedelta, timezone: str | None
) -> Horizon:
    if name == "xid8" and dialect_name == "postgresql" and facts.type_name == "xid8":
        return postgres.XidHorizon(table, facts)
    if name == "server_time" and (facts.is_time or (dialect_name == "sqlite" and facts.may_hold_time)):
        match dialect_name:
            case "postgresql":
                return postgres.ServerTimeHorizon(table, facts, margin, timezone)
            case "mysql" | "mariadb":
                return mysql.ServerTimeHorizon(facts, margin, timezone)
            case "sqlite":
                return sqlite.ServerTimeHorizon(facts, timezone)
    if name == "identity" and facts.is_integer:
        match dialect_name:
            case "postgresql":
                return postgres.IdentityHorizon(table, facts)
            case "mysql" | "mariadb":
                return mysql.IdentityHorizon(table, facts)
            case "sqlite":
                return Unbounded("identity")
    raise SourceConfigurationError(
        f"horizon='{name}' does not fit column '{facts.name}' ({facts.type_name}) on {dialect_name}. Pass "
        "lookback=<seconds> to re-read a window, or horizon='none' if rows commit in cursor order."
    )
