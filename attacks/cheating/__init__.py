"""Attacks of malicious parties: they evaluate the messages that their own deviations provoked."""
