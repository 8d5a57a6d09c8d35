"""What an engine does with a message: in this process, on a task hub, or in Azure Durable Functions."""
