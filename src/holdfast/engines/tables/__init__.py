"""The unified dead letters and history of engines in Azure Table Storage; those in SQL are in ``records``."""
