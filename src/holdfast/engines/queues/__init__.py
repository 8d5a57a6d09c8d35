"""Queues of engine messages: one small protocol, Azure Storage Queue and the embedded jobs queue behind it."""
