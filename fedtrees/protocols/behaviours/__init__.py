"""Behaviours of parties that cheat: each takes the place of an honest party of a protocol."""
