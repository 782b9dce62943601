"""A server of asynchronous training: attacks on it, and kills of it, while workers train."""
