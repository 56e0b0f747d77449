"""Trees as LightGBM grows them: bins, splits, best leaf first; and how its machines add sums."""
