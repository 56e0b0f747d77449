"""A federation between parties: each its own table, its own agreement, its own log."""
