"""``DbBindings``: decorators in the manner of Azure Functions, over triggers, readers and writers."""
