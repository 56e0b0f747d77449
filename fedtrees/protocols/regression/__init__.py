"""Regressions by gradients: vertically with an arbiter, over rows by averaged weights."""
