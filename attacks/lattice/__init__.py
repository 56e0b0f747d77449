"""Certified class counts: exact leaf sums as subset-sum problems (not from a paper).

Exact sums of gradients and hessians are integers in units of 2^-30. Each leaf is a subset-sum
problem: which of the rows that can be in the leaf have these sums? If the answer is unique beyond a
given probability of error, the counts of the leaf are certified.

- `exact_sums`: sums as integers, and the first tree, whose counts follow by division;
- `contents`: subset sums by meeting in the middle (Horowitz and Sahni 1974);
- `candidates`: rows that can be in a leaf, with prior probabilities;
- `paths`, `weights`: the possible paths of all rows through the trees, and their probabilities;
- `decode`: solves leaves of all trees, the most certain ones first;
- `leaf_values`: the first tree if only leaf values are visible;
- `rows`: boxes of rows, for the attack `joint`;
- `attack`: the registered attack.
"""
