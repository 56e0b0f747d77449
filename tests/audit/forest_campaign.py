"""Audit random forests of scikit-learn and fedtrees with random settings, and compare every number.

``python tests/audit/forest_campaign.py --models 1000 --first 0`` checks a thousand forests.
Counts are compared with the distinct rows on which a tree was grown, whatever their weight and
multiplicity. Leaves that are called pure are compared with all rows of the table.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from campaign import parse_options, pick
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from fedtrees import load_model
from fedtrees.core.streams import Streams
from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.verdict import to_json
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.files.forests import from_sklearn, save_random_forest
from fedtrees.trees.forest.grower import grow_random_forest, rows_of_tree
from fedtrees.trees.forest.params import ForestParams

WEIGHTS = (None, None, None, (1,), (2,), (1, 2), (0, 1), (0, 1, 2), (0.5, 1, 1.5), (0.5,), "any")


@dataclass(frozen=True, eq=False)
class GrownForest:
    """The file of a forest, its rows, and the number of times that each tree drew each row, 0
    for rows of weight 0.
    """

    path: Path
    X: np.ndarray
    y: np.ndarray
    n_drawn: list[np.ndarray]
    description: str


def grow_forest(seed: int, folder: Path) -> GrownForest:
    """Grow a forest with random settings on a small table with few values and duplicates."""
    rng = np.random.default_rng([seed, 99])
    n, classes = int(rng.integers(8, 120)), pick(rng, 2, 2, 2, 3)
    X = np.column_stack(
        [rng.integers(0, 4, n) if rng.random() < 0.5 else rng.normal(size=n) for _ in range(3)]
    ).astype(np.float32)
    if rng.random() < 0.3:
        X = X[rng.integers(0, n, n)]
    signal = X.sum(axis=1) + rng.normal(size=n) * pick(rng, 0.1, 2.0)
    y = np.searchsorted(np.quantile(signal, np.sort(rng.random(classes - 1))), signal)
    y[:classes] = np.arange(classes)
    maker = pick(
        rng, _grow_fedtrees_forest, _grow_sklearn_forest, _grow_sklearn_forest, _grow_sklearn_forest
    )
    return maker(rng, X, y.astype(np.int64), folder / "m.npz")


def _grow_fedtrees_forest(
    rng: np.random.Generator, X: np.ndarray, y: np.ndarray, path: Path
) -> GrownForest:
    params = ForestParams(
        trees=3, max_depth=pick(rng, None, 1, 2, 3), bootstrap=pick(rng, True, False),
        max_samples=pick(rng, None, None, 0.5), max_leaf_nodes=pick(rng, None, None, 4),
        min_samples_leaf=pick(rng, 1, 1, 3),
    )  # fmt: skip
    seed = int(rng.integers(1000))
    forest = grow_random_forest(X, y, quantile_cuts(X), params, seed=seed)
    save_random_forest(forest if params.bootstrap else forest.counted_once(), path)
    counts_of_rows = [rows_of_tree(len(y), params, Streams(seed), t) for t in range(params.trees)]
    return GrownForest(path, X, y, counts_of_rows, str(params))


def _grow_sklearn_forest(
    rng: np.random.Generator, X: np.ndarray, y: np.ndarray, path: Path
) -> GrownForest:
    n, seed = len(y), int(rng.integers(1000))
    tree_params: dict[str, Any] = {
        "max_depth": pick(rng, None, 1, 2, 3),
        "max_leaf_nodes": pick(rng, None, None, 4),
        "min_samples_leaf": pick(rng, 1, 1, 3),
        "max_features": pick(rng, None, "sqrt"),
        "criterion": pick(rng, "gini", "entropy", "log_loss"),
        "ccp_alpha": pick(rng, 0, 0, 0.02),
        "min_weight_fraction_leaf": pick(rng, 0, 0, 0.1),
        "random_state": seed,
        "class_weight": pick(
            rng,
            None,
            None,
            "balanced",
            {k: k + 1 for k in range(y.max() + 1)},
            dict.fromkeys(range(y.max() + 1), 1.5),
        ),
    }
    estimator_class = pick(
        rng,
        RandomForestClassifier,
        RandomForestClassifier,
        ExtraTreesClassifier,
        DecisionTreeClassifier,
        ExtraTreeClassifier,
        BaggingClassifier,
    )
    bootstrap, sample_share = pick(rng, True, False), pick(rng, None, None, 0.5, 0.9)
    if estimator_class in (RandomForestClassifier, ExtraTreesClassifier):
        if bootstrap and rng.random() < 0.3:
            tree_params["class_weight"] = "balanced_subsample"
        tree_params |= {"bootstrap": bootstrap, "max_samples": sample_share if bootstrap else None}
        estimator = estimator_class(3, **tree_params)
    elif estimator_class is BaggingClassifier:
        tree = DecisionTreeClassifier(**tree_params)
        estimator = estimator_class(
            tree, 3, bootstrap=bootstrap, max_samples=sample_share or 1.0, random_state=seed
        )
    else:
        estimator = estimator_class(**tree_params)
    weight_choice = pick(rng, *WEIGHTS)
    if estimator_class is BaggingClassifier and not bootstrap:
        weight_choice = None  # It samples rows by weight, which requires replacement.
    weight = (
        None
        if weight_choice is None
        else (
            rng.uniform(0.2, 3, n)
            if weight_choice == "any"
            else rng.choice(np.array(weight_choice, float), n)
        )
    )
    if weight is not None and estimator_class is not BaggingClassifier:
        # Every class has a row of positive weight.
        weight[: y.max() + 1] = np.maximum(weight[: y.max() + 1], 0.5)
    estimator.fit(X, y, sample_weight=weight)
    save_random_forest(from_sklearn(estimator), path)
    all_rows = [np.arange(n)] * len(getattr(estimator, "estimators_", [estimator]))
    samples = getattr(estimator, "estimators_samples_", all_rows)
    is_counted = np.ones(n, dtype=bool) if weight is None else weight > 0
    if estimator_class is BaggingClassifier:
        is_counted[:] = True  # The weights are sampling probabilities.
    counts_of_rows = [np.bincount(rows, minlength=n) * is_counted for rows in samples]
    expected = estimator.predict_proba(X)
    difference = np.abs(
        load_model(path).predict(X) - (expected if y.max() > 1 else expected[:, 1])
    ).max()
    assert difference < 1e-6, f"{estimator} predicts otherwise by {difference}"
    return GrownForest(path, X, y, counts_of_rows, f"{estimator}, weights {weight_choice}")


def check_forest(seed: int, folder: Path) -> tuple[str, list[str], Counter[str]]:
    """Grow and audit one forest; return its description, its faults, and counts of events."""
    forest, tally, found_faults = grow_forest(seed, folder), Counter[str](), list[str]()
    model = read_model(forest.path)
    reached = model.forest.apply(forest.X)
    for declared in (None, Known(rows=len(forest.y))):
        report = audit(model, declared)
        exported = to_json(report)
        for tree, exposed in zip(exported["trees"], report.trees, strict=True):
            tree_index, n_drawn = tree["index"], forest.n_drawn[tree["index"]]
            leaves = zip(tree["leaves"], exposed.pure, exposed.isolated, strict=True)
            for leaf, is_pure, is_isolated in leaves:
                is_inside = reached[:, tree_index] == leaf["id"]
                is_counted = is_inside & (n_drawn > 0)
                n, n_pos = int(is_counted.sum()), int((is_counted & (forest.y == 1)).sum())
                is_wrong = [
                    leaf["n"] not in (None, n),
                    leaf["n_pos"] not in (None, n_pos),
                    leaf["at_least"] is not None and leaf["at_least"] > n,
                    leaf["at_most"] is not None and leaf["at_most"] < n,
                    is_pure and len(np.unique(forest.y[is_inside])) > 1,
                    is_isolated and is_inside.sum() != 1,
                ]
                if any(is_wrong):
                    found_faults.append(
                        f"tree {tree_index}: {leaf}, pure {is_pure}, truth {n} rows, "
                        f"{n_pos} positive"
                    )
        rows = exported["model"]["rows"]
        if rows is not None and rows > len(forest.y):
            found_faults.append(f"{rows} rows of {len(forest.y)}")
    tally.update(
        models=1,
        leaves=report.summary.leaves,
        counted=report.summary.counted,
        exact=report.summary.exact,
        pure=report.summary.pure,
    )
    return forest.description, found_faults, tally


def campaign(first: int, models: int, folder: Path) -> tuple[list[str], Counter[str]]:
    """Check the forests of seeds from `first` on; return one message per faulty forest, and
    counts of events.
    """
    messages, tally = [], Counter[str]()
    for seed in range(first, first + models):
        description, found_faults, counted = check_forest(seed, folder)
        tally += counted
        if found_faults:
            messages.append(f"seed {seed}: {description}\n  " + "\n  ".join(found_faults[:6]))
    return messages, tally


def main() -> None:
    arguments = parse_options(__doc__)
    with TemporaryDirectory() as folder:
        messages, tally = campaign(arguments.first, arguments.models, Path(folder))
    print("\n".join(messages))
    print(f"{len(messages)} of {arguments.models} forests wrong; {dict(tally)}")
    sys.exit(bool(messages))


if __name__ == "__main__":
    main()
