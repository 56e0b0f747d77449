"""A federation between separate sites. Each party has a local table, agreement and log."""
