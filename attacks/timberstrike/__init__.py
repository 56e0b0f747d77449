"""TimberStrike (Di Gennaro et al. 2025): reconstruct training rows from boosted trees.

The adversary receives the trees of a federated gradient boosting, with leaf values, sums per node,
or bin histograms. The attack has three steps:

1. **Count the rows of the first tree** (Eqs. 4-9). All rows then have the same gradient and
   hessian, so that the two sums of a leaf, or of a bin, are two equations for its two class counts.
   `fedtrees.attacks.counts.leaf_sums` solves them for leaves, `bins` for inexact sums of bins.
2. **Assign the rows to the leaves of the later trees, one tree after the other** (Sec. 5.2,
   Eqs. 10-13). `assign_rows_tree_by_tree` repeats four operations for each tree:

   - `fedtrees.attacks.reconstruction.prior.reach` lists the leaves that the box of a row reaches,
     with their prior probabilities;
   - `fedtrees.attacks.reconstruction.maxent.max_entropy` changes these probabilities as little as
     possible, so that the expected sums agree with those that the adversary received;
   - a leaf is drawn for every row, and `redraw_leaves` exchanges leaves until the sums of the drawn
     leaves agree, too;
   - the box of the row is intersected with the box of its leaf, and the value of the leaf is added
     to the margin of the row, from which its gradient in the next tree follows.

   Trees that other clients grew contain no sums of the victims' rows. Only their expected value is
   added (`expected_values`, Sec. 5.3).
3. **Choose a point in the box of every row** (`sample_from_boxes`).

If the adversary receives histograms, `histograms` replaces steps 2 and 3. It decodes rows that are
identified by their gradients, and combines the bins of the remaining rows.

The modules, in the order in which they call each other:

- `attack`: the registered attacks `timberstrike`, ``timberstrike-published`` and ``random-leaf``;
- `reconstruct`: the attack for classes, from the observations to a guess;
- `regression_rows`: the attack for a numeric target;
- `sequential_assignment`: step 2;
- `assignment_solvers`: the moves of step 2, and the published local search;
- `histograms`, `bins`: rows and counts from histograms;
- `sample_from_boxes`: step 3;
- `options`: options of the attack.
"""

from fedtrees.attacks.timberstrike.options import Options
from fedtrees.attacks.timberstrike.reconstruct import reconstruct
from fedtrees.attacks.timberstrike.regression_rows import reconstruct_numbers

__all__ = ["Options", "reconstruct", "reconstruct_numbers"]
