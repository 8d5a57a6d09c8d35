"""The table that is read: six columns, an index on (cursor, key), changes that lie in the past."""

from dataclasses import dataclass

import psycopg

from tests.components.postgres import PostgresServer

NAME = "orders"
CURSOR = "updated_at"
KEY = "id"

_CREATE = """
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer text NOT NULL,
    amount numeric(12, 2) NOT NULL,
    status text NOT NULL,
    note text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
)
"""

# Three rows share each time, so that the key really breaks ties. Rows lie in the table in another order than they
# changed, as they do wherever rows are updated and not only inserted.
_FILL = """
INSERT INTO orders
SELECT i, 'customer ' || i %% 1000, i %% 100000 / 100.0, (ARRAY['new', 'paid', 'sent'])[1 + i %% 3],
       'a note that is about as long as notes are, number ' || i,
       now() - interval '1 day' + i / 3 * interval '1 millisecond'
FROM generate_series(1, %s) AS i ORDER BY hashint8(i)
"""


@dataclass(frozen=True, slots=True)
class Orders:
    """A filled table in a database of its own."""

    rows: int
    url: str
    dsn: str

    @property
    def checksum(self) -> int:
        """Return the sum of all ids: what a reader must have seen."""
        return self.rows * (self.rows + 1) // 2


def filled(server: PostgresServer, rows: int) -> Orders:
    """Return a new table with ``rows`` rows, vacuumed, analysed and written to disk."""
    database = server.create_database()
    orders = Orders(rows, server.url(database), server.dsn(database))
    with psycopg.connect(orders.dsn, autocommit=True) as connection:
        connection.execute(_CREATE)
        connection.execute(_FILL, [rows])
        connection.execute("CREATE INDEX ON orders (updated_at, id)")
        connection.execute("VACUUM ANALYZE orders")
        connection.execute("CHECKPOINT")
    return orders
