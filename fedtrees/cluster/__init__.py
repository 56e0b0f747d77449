"""The grid of a bench on several machines of one owner, over Ray. It is no boundary."""
