"""Behaviours of malicious parties. Each one replaces an honest party of a protocol."""
