"""Adversaries who never look: the line that others are measured against."""
