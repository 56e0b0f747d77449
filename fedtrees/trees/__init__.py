"""The tree engine: arrays in and out, no knowledge of parties or messages. It may import `core`."""
