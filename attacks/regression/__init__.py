"""Rows read off the gradients and weights of federated regressions."""
