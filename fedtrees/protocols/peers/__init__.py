"""Protocols of equal parties, which exchange messages without a server."""
