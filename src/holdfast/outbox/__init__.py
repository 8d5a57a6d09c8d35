"""Outbox and processors: messages written with the business data, consumed with the checkpoint beside the effects."""
