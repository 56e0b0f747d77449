"""Reconstruct rows from the gradients and weights of federated regressions."""
