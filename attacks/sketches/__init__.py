"""Attack on the summaries of columns from which cut points are computed."""
