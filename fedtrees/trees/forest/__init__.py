"""Random forests: class histograms, Gini splits, growth."""
