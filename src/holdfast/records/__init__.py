"""What happened and what went wrong: history, dead letters and the audit of what people did, one table each."""
