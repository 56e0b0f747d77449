"""TimberStrike (Di Gennaro et al. 2025): reconstruct training rows from boosted trees.

The adversary receives the trees of a federated gradient boosting, with leaf values, sums per node,
or bin histograms. The attack has three steps:

1. Solve for the class counts of the leaves, or bins, of the first tree (Eqs. 4-9). All rows then
   have the same gradient and hessian, so that two sums are two equations in two integers.
   `fedtrees.attacks.counts.leaf_sums` treats leaves, `bins` and `histograms` treat bins.
2. Assign the rows to the leaves of every later tree, and intersect their feature ranges (Sec. 5.2,
   Eqs. 10-13). `sequence` follows the rows from tree to tree. The default solver computes the
   probability of every leaf of a row (`fedtrees.attacks.reconstruction.maxent`), draws a leaf, and
   corrects the drawn leaves (`moves`). `moves` also contains the local search, and `milp` the
   integer programme. `foreign` treats trees that other clients grew (Sec. 5.3).
3. Choose a point in the box of every row: `points` and `nearest`.

`reconstruct` combines these steps for classes, `numbers` for numeric targets. `attack` registers
the attack, the authors' version, and a control.
"""

from fedtrees.attacks.timberstrike.options import Options
from fedtrees.attacks.timberstrike.reconstruct import reconstruct
from fedtrees.attacks.timberstrike.regression_rows import reconstruct_numbers

__all__ = ["Options", "reconstruct", "reconstruct_numbers"]
