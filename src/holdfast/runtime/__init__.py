"""What every workload does the same way: the handler's transaction and what a handler is told."""
