"""Read what a view reveals: trees, sums, sketches, and the mechanisms that changed them."""
