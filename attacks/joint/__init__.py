"""Joint reconstruction: sample all rows, given the sums of all trees, by Markov chain Monte Carlo.

This attack is not from a paper. TimberStrike (Di Gennaro et al. 2025) assigns rows to the leaves of
one tree after the other and cannot correct an earlier assignment. The Markov chain starts from its
result and changes rows until they agree with the sums of all trees.

- `posterior_problem`: the trees on a common grid, and the sums of their leaves (the likelihood);
- `log_posterior`: a mixture model of the rows (the prior), and the change of the log-posterior
  density that a move causes;
- `sampler`: proposals, and Metropolis-Hastings;
- `reconstruct`: annealing, several chains, and their consensus;
- `attack`: the registered attack.
"""
