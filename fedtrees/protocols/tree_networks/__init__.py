"""Protocol of trees of all clients with a network over their outputs. It uses both families."""
