"""The database room: pools, errors, statements, migrations and values, the same under every workload."""
