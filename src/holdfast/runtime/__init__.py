"""What every workload stands on: keeping leases, running the parts of a process, housekeeping."""
