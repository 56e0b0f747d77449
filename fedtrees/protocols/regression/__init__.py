"""Regressions by gradients: over columns with an arbiter, over rows by averaged weights."""
