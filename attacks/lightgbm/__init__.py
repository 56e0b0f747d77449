"""Attacks on the bins and sums that LightGBM or XGBoost workers send one another."""
