"""The kinds of cursor column a trigger can be sound on, and a table with each."""

from __future__ import annotations

from dataclasses import dataclass

SENTINEL = 1_000_000_000
"""A key above all others: once it has come, everything below has come or is lost."""

_WAL = "PRAGMA journal_mode = WAL"


@dataclass(frozen=True, slots=True)
class CursorKind:
    """A table ``items`` whose cursor is of one kind, on the database a fixture gives.

    ``clock`` is the database's present time with the precision of the column.
    """

    name: str
    url_fixture: str
    statements: tuple[str, ...]
    horizon: str
    cursor: str = "changed"
    clock: str = ""

    @property
    def insert_only(self) -> bool:
        """Return whether an update does not move the cursor."""
        return self.horizon == "identity"

    def __str__(self) -> str:
        return self.name


def _postgres(column: str, default: str, clock: str = "") -> CursorKind:
    return CursorKind(
        f"postgresql {column}",
        "postgres_url",
        (
            "CREATE TABLE items (id BIGINT PRIMARY KEY, version INT NOT NULL DEFAULT 1, "
            f"changed {column} NOT NULL DEFAULT {default})",
            "CREATE INDEX items_changed ON items (changed, id)",
            "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN NEW.changed := {default}; RETURN NEW; END $$",
            "CREATE TRIGGER touch BEFORE UPDATE ON items FOR EACH ROW EXECUTE FUNCTION touch()",
        ),
        "server_time" if clock else "xid8",
        clock=clock,
    )


def _mariadb(column: str) -> CursorKind:
    now = f"CURRENT_TIMESTAMP{column[-3:]}"
    return CursorKind(
        f"mariadb {column.lower()}",
        "mariadb_url",
        (
            "CREATE TABLE items (id BIGINT PRIMARY KEY, version INT NOT NULL DEFAULT 1, "
            f"changed {column} NOT NULL DEFAULT {now} ON UPDATE {now}) ENGINE=InnoDB",
            "CREATE INDEX items_changed ON items (changed, id)",
        ),
        "server_time",
        clock=now,
    )


def _sqlite(name: str, default: str) -> CursorKind:
    return CursorKind(
        f"sqlite {name}",
        "sqlite_url",
        (
            _WAL,
            "CREATE TABLE items (id INTEGER PRIMARY KEY, version INT NOT NULL DEFAULT 1, "
            f"changed TEXT NOT NULL DEFAULT {default})",
            "CREATE INDEX items_changed ON items (changed, id)",
            "CREATE TRIGGER touch AFTER UPDATE OF version ON items "
            f"BEGIN UPDATE items SET changed = {default} WHERE id = NEW.id; END",
        ),
        "server_time",
        clock=default,
    )


def _identity(name: str, url_fixture: str, column: str, before: tuple[str, ...] = ()) -> CursorKind:
    statement = f"CREATE TABLE items (id {column}, version INT NOT NULL DEFAULT 1)"
    return CursorKind(name, url_fixture, (*before, statement), "identity", cursor="id")


PG_XID8 = _postgres("xid8", "pg_current_xact_id()")
PG_TIMESTAMPTZ = _postgres("timestamptz", "now()", "clock_timestamp()")
PG_TIMESTAMPTZ_0 = _postgres("timestamptz(0)", "now()", "date_trunc('second', clock_timestamp())")
PG_TIMESTAMP = _postgres("timestamp", "now()", "clock_timestamp()")
PG_IDENTITY = _identity("postgresql identity", "postgres_url", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY")
MY_TIMESTAMP = _mariadb("TIMESTAMP(6)")
MY_DATETIME = _mariadb("DATETIME(6)")
MY_DATETIME_0 = _mariadb("DATETIME(0)")
MY_IDENTITY = _identity("mariadb auto_increment", "mariadb_url", "BIGINT AUTO_INCREMENT PRIMARY KEY")
SQLITE_SECONDS = _sqlite("CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP")
SQLITE_MILLISECONDS = _sqlite("strftime %f", "(strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))")
SQLITE_IDENTITY = _identity("sqlite autoincrement", "sqlite_url", "INTEGER PRIMARY KEY AUTOINCREMENT", (_WAL,))

POSTGRES = (PG_XID8, PG_TIMESTAMPTZ, PG_TIMESTAMPTZ_0, PG_TIMESTAMP, PG_IDENTITY)
MARIADB = (MY_TIMESTAMP, MY_DATETIME, MY_DATETIME_0, MY_IDENTITY)
SQLITE = (SQLITE_SECONDS, SQLITE_MILLISECONDS, SQLITE_IDENTITY)
ALL = (*POSTGRES, *MARIADB, *SQLITE)
