"""What attacks share: evidence of a view, sums, counts, routing, priors and consensus."""
