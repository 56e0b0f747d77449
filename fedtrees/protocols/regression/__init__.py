"""Protocols of linear and logistic regression, vertical with an arbiter or horizontal."""
