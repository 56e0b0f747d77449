"""Run the grid of a bench on several machines of one owner with Ray. It is no security boundary."""
