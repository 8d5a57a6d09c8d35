"""Benchmarks: ``python -m bench``. Every figure that counts is a ratio of things measured side by side.

``catchup`` races Holdfast against plain psycopg loops and azure-functions-db, ``growth`` shows that a batch costs the
same in a big table, ``trips`` counts what a batch asks of the databases. ``docs/benchmarks.md`` explains them.
"""
