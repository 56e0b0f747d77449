"""The tree engine: pure arrays in and out, no knowledge of parties or messages."""
