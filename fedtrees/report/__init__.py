"""Figures and the self-contained report of a run."""
