"""The queue in each kind of database: one set of promises, one conformance suite, SQL of its own."""
