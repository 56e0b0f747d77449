"""Attacks that use no messages: the published baselines of label inference."""
