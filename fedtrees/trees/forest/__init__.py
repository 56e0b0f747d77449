"""Random forests: class histograms, Gini splits and growth."""
