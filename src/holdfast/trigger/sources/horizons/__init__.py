"""How far a poll may read without ever skipping a row that commits late.

A row is written with its cursor value before its transaction commits. Whoever reads past that value in between, and
remembers where it stood, never sees the row. So each source has a horizon: a bound below which every row that will ever
exist is already visible. A bound once found stays good for ever; only a newer one lets the trigger read further.
"""
