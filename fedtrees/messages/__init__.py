"""What parties say to one another, by family; protocols, defenses and attacks read these words."""
