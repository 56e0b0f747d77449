"""Where other parties split their columns, from what an endpoint answers."""
