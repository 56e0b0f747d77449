"""Trees in the way of LightGBM: bins, splits, best-first growth, and its collective operations."""
