"""Limits of time of a bench: those of `fedtrees.core.limits`."""

from fedtrees.core.limits import TimeLimit, check_thread, limited, limited_if_possible

__all__ = ["TimeLimit", "check_thread", "limited", "limited_if_possible"]
