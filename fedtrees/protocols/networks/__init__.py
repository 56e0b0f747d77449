"""Networks that clients train together."""
