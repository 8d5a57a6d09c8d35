"""Gives every order an address, so that its receipt can be written: ``python give_addresses.py``."""

from __future__ import annotations

import sys

from app import hf  # type: ignore[import-not-found] # app.py lies beside this file
from sqlalchemy import text

if __name__ == "__main__":
    with hf.database.begin() as connection:
        given = connection.execute(text("UPDATE orders SET address = 'anne@example.com' WHERE address = 'nobody'"))
    sys.stdout.write(f"addresses given: {given.rowcount}\n")
