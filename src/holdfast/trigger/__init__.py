"""Change triggers: poll a source, deliver what changed, record how far it got under a fenced lease."""
