"""Reading and writing rows from a function body: ``DbReader`` and ``DbWriter``."""
