"""The rules that protocols, defenses, attacks and behaviours keep: `fedtrees check`."""
