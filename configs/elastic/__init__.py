"""Training that goes on when workers die, stall or join: docs/elastic.md."""
