"""Trees that clients grew alone and shared: who grew which, and what they say of the rows."""
