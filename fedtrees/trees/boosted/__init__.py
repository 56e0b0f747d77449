"""Boosted trees: objectives, gradient histograms and growth, compatible with XGBoost's `hist`."""
