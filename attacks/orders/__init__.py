"""Attacks that infer the order of rows in columns of other parties from the routing of rows."""
