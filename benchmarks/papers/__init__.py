"""Replications of published studies, with the published figures next to the measured ones."""
