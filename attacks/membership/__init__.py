"""Was a row in the table? Likelihood ratios over reference models, and held values in messages."""
