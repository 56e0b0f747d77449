"""Values and labels, read off what LightGBM's machines tell one another."""
