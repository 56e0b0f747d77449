"""Parts of row reconstruction: boxes on a grid, the prior, maximum entropy, the final vote."""
