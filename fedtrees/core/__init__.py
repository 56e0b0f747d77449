"""The vocabulary everybody speaks: parties, holdings, messages, views, guesses, defenses. It imports nothing of fedtrees."""
