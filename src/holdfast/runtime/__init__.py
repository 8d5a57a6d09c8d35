"""What every workload stands on: the handler's transaction and context, keeping leases, the parts of a process."""
