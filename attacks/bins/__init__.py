"""Infer the bins of other parties' columns from the sums that the active party decrypts."""
