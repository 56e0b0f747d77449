"""Message types of all protocol families. This package may import only `core` and `trees`."""
