"""Infer a sensitive attribute of single rows, and the class shares of a client's rows."""
