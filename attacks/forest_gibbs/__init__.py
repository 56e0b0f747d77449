"""Reconstruct rows from the class counts in the leaves of random forests (not from a paper).

Every leaf of a random forest is a box, and the model contains the number of rows of each class in
it. The attack searches for tables that have these counts in all leaves of all trees. `gibbs`
collects the trees of a view and samples tables, also for forests whose leaves contain class shares
instead of counts, and `attack` registers the attack.
"""
