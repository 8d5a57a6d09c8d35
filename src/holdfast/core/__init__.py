"""Configuration, values, errors, time and telemetry names: what every other part stands on."""
