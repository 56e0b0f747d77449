"""What parties say to one another, by family. It may import `core` and `trees`."""
