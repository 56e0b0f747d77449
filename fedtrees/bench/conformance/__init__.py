"""Check the rules of protocols, defenses, attacks and behaviours, for `fedtrees check`."""
