"""Tables, their schema, and how they are spread over parties."""
