"""Trees of every client, and a network over their outputs: it stands on both families."""
