"""Engines: operations that run at least once, with unified dead letters and history."""
