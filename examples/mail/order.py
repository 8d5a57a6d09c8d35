"""Creates the tables when there are none, and enqueues the work of some orders: ``python order.py 10``."""

from __future__ import annotations

import sys

from app import add_points, hf, send  # type: ignore[import-not-found] # app.py lies beside this file
from sqlalchemy import text


def main() -> None:
    """Enqueue what belongs to each order in one transaction: all of it, or nothing."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    hf.migrate()
    with hf.database.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS points (customer TEXT NOT NULL, points INTEGER NOT NULL)"))
        for order in range(1, count + 1):
            customer = "flaky@example.com" if order == 1 else "nobody" if order == 2 else f"c{order}@example.com"
            send.options(correlation_id=f"order-{order}").enqueue(to=customer, order=order, connection=connection)
            add_points.options(correlation_id=f"order-{order}").enqueue(
                customer=customer, points=10, connection=connection
            )
    sys.stdout.write(f"enqueued {2 * count} jobs for {count} orders\n")


if __name__ == "__main__":
    main()
