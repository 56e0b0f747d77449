"""Trees as LightGBM grows them: its bins, its search for splits, best leaf first."""
