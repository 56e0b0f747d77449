"""Attacks that send chosen records to a prediction endpoint and infer splits of other parties."""
