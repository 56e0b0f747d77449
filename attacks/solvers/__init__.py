"""Solvers that several attacks share. They know neither views nor trees."""
