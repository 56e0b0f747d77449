"""Check protocols, defenses, attacks, behaviours and metrics, for `fedtrees plugin check`."""
