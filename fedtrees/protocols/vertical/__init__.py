"""Parties with other columns of the same rows; one of them, the active party, has the labels."""
