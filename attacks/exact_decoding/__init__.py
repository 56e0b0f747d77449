"""Certified class counts: exact leaf sums as subset-sum problems (not from a paper).

Exact sums of gradients and hessians are integers in units of 2^-30. Each leaf is a subset-sum
problem: which of the rows that can be in the leaf have these sums? If the answer is unique beyond a
given probability of error, the counts of the leaf are certified.

- `integer_sums`: sums as integers, and the certain counts of the first tree;
- `leaf_subset_sum`: rows that can be in a leaf, and subset sums by meeting in the middle (Horowitz
  and Sahni 1974);
- `path_hypotheses`: the possible paths of all rows through the trees, and boxes of rows, for the
  attack `joint`;
- `decode`: solves leaves of all trees, the most certain ones first;
- `attack`: the registered attack.
"""
