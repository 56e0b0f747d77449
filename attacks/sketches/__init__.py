"""The victims' columns, read off the summaries that settle the cut points."""
