"""The wheel in an empty environment: ``python -m tools.wheel --help``."""
