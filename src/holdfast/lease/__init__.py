"""The state kernel: one document per poller, holding checkpoint and lease, changed only by compare-and-set."""
