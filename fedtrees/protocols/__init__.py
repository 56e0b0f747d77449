"""Federated training protocols."""
