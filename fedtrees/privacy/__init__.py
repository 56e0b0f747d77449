"""Mechanisms that add noise and accountants that say what it bought. It may import `core`."""
