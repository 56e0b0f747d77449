"""Small generated cases are compared with an engine that tries every split, row by row.

Three hundred cases run by default; ``pytest -m slow tests/trees/test_brute_force.py`` runs 10^5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from several_owners import grow_forest_over

from fedtrees.trees.binning import Cuts, bin_rows
from fedtrees.trees.boosted.boosting import OwnerRows
from fedtrees.trees.boosted.forest import Forest
from fedtrees.trees.boosted.histogram import to_fixed, weighted
from fedtrees.trees.boosted.losses import LOGISTIC, SQUARED_ERROR, Softmax
from fedtrees.trees.boosted.params import TreeParams

MIN_GAIN = np.float32(1e-6)


@dataclass
class Case:
    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    cuts: Cuts
    params: TreeParams
    objective: object
    owner: np.ndarray


def generate(seed: int) -> Case:
    """Draw a tiny table with ties, missing values, duplicates, and odd parameters."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 40)), int(rng.integers(1, 4))
    X = rng.integers(-4, 5, (n, d)).astype(np.float32)
    X[rng.random((n, d)) < rng.choice([0, 0.3])] = np.nan
    if d > 1 and rng.random() < 0.3:
        X[:, 1] = X[:, 0]
    objective = [LOGISTIC, Softmax(3), SQUARED_ERROR][int(rng.integers(3))]
    y = (
        rng.normal(0, 3, n)
        if objective is SQUARED_ERROR
        else rng.integers(0, 2 if objective is LOGISTIC else 3, n)
    )
    borders = [  # the last one lies above every value, as any sketch's does
        [*np.unique(rng.integers(-4, 4, int(rng.integers(0, 8))) + 0.5), 9.0] for _ in range(d)
    ]
    params = TreeParams(
        trees=2,
        max_depth=int(rng.integers(1, 5)),
        max_leaves=int(rng.choice([0, 0, 0, 3, 5])),
        grow_policy=str(rng.choice(["depthwise", "lossguide"])),
        learning_rate=float(rng.choice([0.1, 0.5, 1.0])),
        reg_lambda=float(rng.choice([0.0, 0.5, 1.0])),
        reg_alpha=float(rng.choice([0.0, 0.0, 0.3])),
        gamma=float(rng.choice([0.0, 0.0, 0.2])),
        min_child_weight=float(rng.choice([0.0, 0.0, 0.1, 1.0])),
        base_score=0.5,
    )
    weight = rng.choice([0.0, 0.5, 1.0, 2.0], n) if rng.random() < 0.4 else None
    cuts = Cuts.join(borders, np.full(d, -9.0))
    return Case(X, y, weight, cuts, params, objective, rng.integers(0, 3, n))


class BruteForce:
    """One tree that is grown by trying every split of every node on the raw values of its rows."""

    def __init__(self, case: Case, gh: np.ndarray, bits: tuple[int, int]) -> None:
        self.case, self.gh, self.bits = case, gh, bits
        self.nodes: list[dict] = []
        self.leaves = 1
        root = self.add(np.arange(len(gh)), 0)
        waiting = [root]
        p = case.params
        while waiting:
            if p.grow_policy == "lossguide":
                best = max(waiting, key=lambda i: (self.gain(i), -i))
            else:
                best = waiting[0]
            waiting.remove(best)
            if self.nodes[best]["split"] is None or (p.max_leaves and self.leaves >= p.max_leaves):
                continue
            waiting += self.expand(best)

    def add(self, rows, depth):
        split = None if depth == self.case.params.max_depth else self.best_split(rows)
        self.nodes.append({"rows": rows, "depth": depth, "split": split, "left": -1})
        return len(self.nodes) - 1

    def gain(self, i):
        split = self.nodes[i]["split"]
        return -1 if split is None else float(split[0])

    def expand(self, i):
        node = self.nodes[i]
        _, feature, threshold, missing_left = node["split"]
        left = self.goes_left(node["rows"], feature, threshold, missing_left)
        node["left"] = len(self.nodes)
        self.leaves += 1
        return [
            self.add(node["rows"][left], node["depth"] + 1),
            self.add(node["rows"][~left], node["depth"] + 1),
        ]

    def goes_left(self, rows, feature, threshold, missing_left):
        x = self.case.X[rows, feature]
        return np.where(np.isnan(x), missing_left, x < threshold)

    def score(self, rows):
        g, h = (int(s) for s in self.gh[rows].sum(axis=0))
        g, h = g * 2.0 ** -self.bits[0], h * 2.0 ** -self.bits[1]
        if h <= 0:
            return np.float32(0), h
        p = self.case.params
        g = max(abs(g) - float(np.float32(p.reg_alpha)), 0.0)
        return np.float32(g * g) / np.float32(h + float(np.float32(p.reg_lambda))), h

    def best_split(self, rows):
        p, cuts = self.case.params, self.case.cuts
        minimum_hessian = float(np.float32(p.min_child_weight))
        best, parent = None, self.score(rows)[0]
        for feature in range(cuts.n_features):
            is_missing = np.isnan(self.case.X[rows, feature]) & (self.gh[rows] != 0).any(axis=1)
            borders = cuts.of(feature)
            forward = [(border, False) for border in borders]
            backward = [(border, True) for border in [*borders[-2::-1], cuts.minimum[feature]]]
            for threshold, missing_left in forward + (backward if is_missing.any() else []):
                left = self.goes_left(rows, feature, threshold, missing_left)
                (a, ha), (b, hb) = self.score(rows[left]), self.score(rows[~left])
                if ha < minimum_hessian or hb < minimum_hessian:
                    continue
                gain = a + b - parent
                if gain > (best[0] if best else np.float32(0)):
                    best = (gain, feature, threshold, missing_left)
        if best is None or best[0] <= MIN_GAIN or best[0] < np.float32(p.gamma):
            return None
        left = self.goes_left(rows, *best[1:])
        if self.score(rows[left])[1] == 0 or self.score(rows[~left])[1] == 0:
            return None
        return best

    def value(self, i):
        rows, p = self.nodes[i]["rows"], self.case.params
        g, h = (float(s) for s in np.ldexp(self.gh[rows].sum(axis=0), np.negative(self.bits)))
        if h <= 0 or h < np.float32(p.min_child_weight):
            return np.float32(0)
        g = np.sign(g) * max(abs(g) - float(np.float32(p.reg_alpha)), 0.0)
        return np.float32(-g / (h + float(np.float32(p.reg_lambda)))) * np.float32(p.learning_rate)


def disagreement(seed: int) -> str | None:
    """Return a description of the first difference from brute force, or None."""
    case = generate(seed)
    objective = case.objective
    owners = [
        OwnerRows(
            bin_rows(case.X[rows], case.cuts),
            case.y[rows],
            None if case.weight is None else case.weight[rows],
        )
        for rows in (np.flatnonzero(case.owner == output) for output in range(3))
    ]
    totals = sum(objective.target_sums(owner.y, owner.weight) for owner in owners)
    if not totals[1:].any():
        return None
    forest = grow_forest_over(owners, case.cuts, case.params, objective)
    bits = objective.bits(totals)
    margin = np.repeat(objective.base_margin(0.5)[:, None], len(case.y), axis=1)
    weight = None if case.weight is None else case.weight.astype(np.float32)
    for number, tree in enumerate(forest.trees):
        output = number % objective.n_outputs
        if output == 0:
            gradients = to_fixed(weighted(objective.gradients(margin, case.y), weight, bits), bits)
        brute = BruteForce(case, gradients[output], bits)
        lefts = [node["left"] for node in brute.nodes]
        if lefts != tree.left.tolist():
            return f"tree {number}: shape {tree.left.tolist()}, expected {lefts}"
        for i, node in enumerate(brute.nodes):
            if node["left"] >= 0:
                _, feature, threshold, missing_left = node["split"]
                expected_left = brute.goes_left(node["rows"], feature, threshold, missing_left)
                actual_left = brute.goes_left(
                    node["rows"],
                    tree.feature[i],
                    tree.threshold[i],
                    tree.default_left[i],
                )
                if tree.feature[i] != feature or (expected_left != actual_left).any():
                    return (
                        f"tree {number}, node {i}: split on {tree.feature[i]}, expected {feature}"
                    )
            elif tree.value[i] != brute.value(i):
                return f"tree {number}, leaf {i}: {tree.value[i]}, expected {brute.value(i)}"
        for i, node in enumerate(brute.nodes):
            if node["left"] < 0:
                margin[output, node["rows"]] += tree.value[i]
    if not np.array_equal(margin, np.atleast_2d(forest.margin(case.X).T)):
        return "margins differ from the sum of leaf values"
    return None


def assert_all_agree(seeds) -> None:
    disagreements = {seed: text for seed in seeds if (text := disagreement(seed)) is not None}
    assert disagreements == {}


@pytest.mark.long
def test_three_hundred_small_cases():
    assert_all_agree(range(300))


@pytest.mark.slow
def test_a_hundred_thousand_small_cases():
    assert_all_agree(range(300, 100_300))


def test_the_cases_are_not_all_trivial():
    forests: list[Forest] = []
    for seed in range(60):
        case = generate(seed)
        owner = OwnerRows(bin_rows(case.X, case.cuts), case.y, case.weight)
        if case.objective.target_sums(owner.y, owner.weight)[1:].any():
            forests.append(grow_forest_over([owner], case.cuts, case.params, case.objective))
    sizes = [len(t.leaves) for f in forests for t in f.trees]
    assert np.mean(np.array(sizes) > 2) > 0.25
    assert any(t.default_left.any() for f in forests for t in f.trees)
