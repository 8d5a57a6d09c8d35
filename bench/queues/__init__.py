"""Job queues side by side: each runs in processes of its own, on the same PostgreSQL, with no-op jobs."""
