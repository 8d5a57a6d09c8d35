"""Background jobs: a queue whose claim is the lease, fenced by owner and attempt."""
