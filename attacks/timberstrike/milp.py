"""Assign rows to leaves with an integer programme, as published.

The programme is that of Di Gennaro et al. (2025, Eqs. 11-13), with two differences. The objective
is the L1 distance, as in the authors' code, although the paper prints squared L2. Identical rows
are merged: an integer variable counts the rows of a group that go to a leaf, where the paper has
one binary variable per row and leaf. The attack uses this solver with ``solver="milp"``, for
comparison with the published results.

The solver is CP-SAT of OR-Tools, with coefficients scaled to integers. Its time limit is in
deterministic seconds, so that a repeated run gives the same answer independently of the load of the
machine.
"""

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.prior import ReachableLeaves

Floats = NDArray[np.float64]

SCALE = 1e6  # the precision of sums is about 1e-6 (float32 gradients)


def solve_counts(
    reach: ReachableLeaves, weight: NDArray[np.int64], x: Floats, target: Floats, time_limit: float
) -> tuple[NDArray[np.int64], float] | None:
    """Assign groups of equal rows to leaves with minimal L1 distance of the leaf sums.

    Parameters
    ----------
    reach : ReachableLeaves
        Reachable leaves of m groups, nnz entries in all.
    weight : int64 array, shape (m,)
        Number of rows of each group.
    x : float64 array, shape (nnz, K)
        Contribution of one row to each sum of each leaf that it can reach.
    target : float64 array, shape (J, K)
        Sums of the leaves.
    time_limit : float
        Limit in deterministic seconds of the solver.

    Returns
    -------
    (counts, residual) or None
        Rows of each group in each leaf, int64 array, shape (nnz,), and the L1 distance. None if the
        solver found no feasible solution within the limit.
    """
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    z = []
    for i, w in enumerate(weight):
        leaf_counts = [
            model.new_int_var(0, int(w), "") for _ in range(reach.offsets[i], reach.offsets[i + 1])
        ]
        model.add(sum(leaf_counts) == int(w))
        z += leaf_counts
    coefficient = np.rint(x * SCALE).astype(np.int64)
    goal = np.rint(target * SCALE).astype(np.int64)
    gaps = []
    for j in range(target.shape[0]):
        entries = np.flatnonzero(reach.leaf == j)
        for k in range(target.shape[1]):
            bound = int(np.abs(goal[j, k])) + int(weight.sum() * np.abs(coefficient).max(initial=1))
            # An absolute value is linearised: gap >= left and gap >= -left, and gap is minimised.
            gap = model.new_int_var(0, bound, "")
            left = sum(z[e] * int(coefficient[e, k]) for e in entries) - int(goal[j, k])
            model.add(gap >= left)
            model.add(gap >= -left)
            gaps.append(gap)
    model.minimize(sum(gaps))
    solver = cp_model.CpSolver()
    # One worker, a fixed seed and deterministic time make the result reproducible.
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = time_limit
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    count = np.array([solver.value(v) for v in z], dtype=np.int64)
    return count, solver.objective_value / SCALE
