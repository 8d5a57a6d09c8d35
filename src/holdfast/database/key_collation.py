"""How MariaDB and MySQL compare what our tables are looked up by: by its bytes, as PostgreSQL and SQLite do.

Their other collations take ``'a '`` for ``'a'``, and most of them also ``'A'`` or ``'á'``. Ours has two names. A
comment such as ``/*M! … */`` is read by MariaDB only, and ``/*!80017 … */`` by MySQL since 8.0.17 and not by MariaDB,
so one text serves both, in the ``.sql`` files as ``{{key_collation}}``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam, text
from sqlalchemy.engine import Connection

KEY_COLLATION = "/*M!100200 utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */"
NAMES = ("utf8mb4_nopad_bin", "utf8mb4_0900_bin")
_DIALECTS = ("mysql", "mariadb")

KEY_TABLE: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in _DIALECTS
    for option, value in (("charset", "utf8mb4"), ("collate", KEY_COLLATION), ("engine", "InnoDB"))
}
"""The options of a table of ours: whatever the URL calls the dialect, and whatever the database's own collation is."""

_WITH_ANOTHER = text(
    """
    SELECT found.table_name FROM information_schema.tables AS found
    WHERE found.table_schema = DATABASE() AND found.table_name IN :tables AND (
        found.table_collation NOT IN :names
        OR EXISTS (SELECT 1 FROM information_schema.columns AS kept
            WHERE kept.table_schema = DATABASE() AND kept.table_name = found.table_name
                AND kept.collation_name NOT IN :names))
    """
).bindparams(bindparam("tables", expanding=True), bindparam("names", NAMES, expanding=True))


def compare_by_bytes(connection: Connection, tables: Iterable[str]) -> None:
    """Let those of the tables that are there compare all their text by its bytes, one after the other, in this order.

    What two keys have been told apart by before still tells them apart, so no row is in the way. MariaDB builds the
    indexes anew, and copies only tables whose primary key is text; MySQL copies each. Who reads goes on, and who writes
    waits: beside writers, MariaDB 10.11 builds indexes of which it says afterwards that they are corrupted.
    """
    if connection.dialect.name not in _DIALECTS:
        return
    wanted = tuple(tables)
    found = set(connection.execute(_WITH_ANOTHER, {"tables": wanted}).scalars())
    for table in wanted:
        if table in found:
            connection.exec_driver_sql(
                f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {KEY_COLLATION}, LOCK=SHARED"
            )
