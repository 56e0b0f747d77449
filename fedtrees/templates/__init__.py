"""Files that `fedtrees new` writes: a protocol, a defense and an attack, each complete."""
