"""Certificates of what leaf sums tell about where rows went."""
