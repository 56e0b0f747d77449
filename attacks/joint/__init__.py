"""Beyond the papers: all rows and all trees at once, by Markov chain Monte Carlo."""
