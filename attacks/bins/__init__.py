"""Bins of other parties' columns, from the sums over them that the active party opens."""
