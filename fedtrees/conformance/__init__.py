"""Check the rules of protocols, defenses, attacks, behaviours and metrics: `fedtrees check`."""
