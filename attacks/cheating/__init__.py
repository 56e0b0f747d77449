"""Attacks of parties that cheat: what they read of the answers to what they asked."""
