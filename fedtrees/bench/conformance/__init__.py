"""The rules that protocols, defenses, attacks, behaviours and metrics keep: `fedtrees check`."""
