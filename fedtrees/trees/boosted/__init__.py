"""Boosted trees: objectives, gradient histograms, growth, as XGBoost's `hist` does it."""
