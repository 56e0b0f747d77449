"""Audit random forests of random settings, scikit-learn's and ours, and compare every number.

``python tests/audit/forest_campaign.py --models 1000 --first 0``. What a count is held against are
the rows that a tree was grown on, each once, whatever it weighed and however often it was drawn;
what is called pure, all rows of the table.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from campaign import options_of, pick
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier

from fedtrees import load_model
from fedtrees.core.streams import Streams
from fedtrees.model_audit import Known, audit, read_model
from fedtrees.model_audit.verdict import to_json
from fedtrees.trees.cut_points import quantile_cuts
from fedtrees.trees.files.forests import save_random_forest
from fedtrees.trees.files.sklearn_forest import from_sklearn
from fedtrees.trees.forest.grower import grow_random_forest, rows_of_tree
from fedtrees.trees.forest.params import ForestParams

WEIGHTS = (None, None, None, (1,), (2,), (1, 2), (0, 1), (0, 1, 2), (0.5, 1, 1.5), (0.5,), "any")


@dataclass(frozen=True, eq=False)
class Grown:
    """A forest's file, its rows, and for each tree how often it drew each row, weight 0 aside."""

    path: Path
    X: np.ndarray
    y: np.ndarray
    drawn: list[np.ndarray]
    about: str


def make(seed: int, folder: Path) -> Grown:
    """Grow a forest of random settings on a small table of few values and duplicates."""
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
    maker = pick(rng, _ours, _sklearn, _sklearn, _sklearn)
    return maker(rng, X, y.astype(np.int64), folder / "m.npz")


def _ours(rng: np.random.Generator, X: np.ndarray, y: np.ndarray, path: Path) -> Grown:
    params = ForestParams(
        trees=3, max_depth=pick(rng, None, 1, 2, 3), bootstrap=pick(rng, True, False),
        max_samples=pick(rng, None, None, 0.5), max_leaf_nodes=pick(rng, None, None, 4),
        min_samples_leaf=pick(rng, 1, 1, 3),
    )  # fmt: skip
    seed = int(rng.integers(1000))
    forest = grow_random_forest(X, y, quantile_cuts(X), params, seed=seed)
    save_random_forest(forest if params.bootstrap else forest.counted_once(), path)
    drawn = [rows_of_tree(len(y), params, Streams(seed), t) for t in range(params.trees)]
    return Grown(path, X, y, drawn, str(params))


def _sklearn(rng: np.random.Generator, X: np.ndarray, y: np.ndarray, path: Path) -> Grown:
    n, seed = len(y), int(rng.integers(1000))
    grows: dict[str, Any] = {
        "max_depth": pick(rng, None, 1, 2, 3), "max_leaf_nodes": pick(rng, None, None, 4),
        "min_samples_leaf": pick(rng, 1, 1, 3), "max_features": pick(rng, None, "sqrt"),
        "criterion": pick(rng, "gini", "entropy", "log_loss"), "ccp_alpha": pick(rng, 0, 0, 0.02),
        "min_weight_fraction_leaf": pick(rng, 0, 0, 0.1), "random_state": seed,
        "class_weight": pick(rng, None, None, "balanced", {k: k + 1 for k in range(y.max() + 1)},
                             dict.fromkeys(range(y.max() + 1), 1.5)),
    }  # fmt: skip
    kind = pick(rng, RandomForestClassifier, RandomForestClassifier, ExtraTreesClassifier,
                DecisionTreeClassifier, ExtraTreeClassifier, BaggingClassifier)  # fmt: skip
    bootstrap, share = pick(rng, True, False), pick(rng, None, None, 0.5, 0.9)
    if kind in (RandomForestClassifier, ExtraTreesClassifier):
        if bootstrap and rng.random() < 0.3:
            grows["class_weight"] = "balanced_subsample"
        grows |= {"bootstrap": bootstrap, "max_samples": share if bootstrap else None}
        made = kind(3, **grows)
    elif kind is BaggingClassifier:
        tree = DecisionTreeClassifier(**grows)
        made = kind(tree, 3, bootstrap=bootstrap, max_samples=share or 1.0, random_state=seed)
    else:
        made = kind(**grows)
    drawn_from = pick(rng, *WEIGHTS)
    if kind is BaggingClassifier and not bootstrap:
        drawn_from = None  # it draws by weights, and cannot without replacement
    weight = None if drawn_from is None else (
        rng.uniform(0.2, 3, n)
        if drawn_from == "any"
        else rng.choice(np.array(drawn_from, float), n)
    )  # fmt: skip
    if weight is not None and kind is not BaggingClassifier:
        weight[: y.max() + 1] = np.maximum(weight[: y.max() + 1], 0.5)  # every class is there
    made.fit(X, y, sample_weight=weight)
    save_random_forest(from_sklearn(made), path)
    every = [np.arange(n)] * len(getattr(made, "estimators_", [made]))
    samples = getattr(made, "estimators_samples_", every)
    kept = np.ones(n, dtype=bool) if weight is None else weight > 0
    if kind is BaggingClassifier:
        kept[:] = True  # weights are what rows are drawn by
    drawn = [np.bincount(rows, minlength=n) * kept for rows in samples]
    expected = made.predict_proba(X)
    off = np.abs(load_model(path).predict(X) - (expected if y.max() > 1 else expected[:, 1])).max()
    assert off < 1e-6, f"{made} predicts otherwise by {off}"
    return Grown(path, X, y, drawn, f"{made}, weights {drawn_from}")


def check(seed: int, folder: Path) -> tuple[str, list[str], Counter[str]]:
    """Make and audit one forest; return what it is, what is wrong, and how much was counted."""
    made, tally, out = make(seed, folder), Counter[str](), list[str]()
    model = read_model(made.path)
    reached = model.forest.apply(made.X)
    for known in (None, Known(rows=len(made.y))):
        found = audit(model, known)
        said = to_json(found)
        for tree, exposed in zip(said["trees"], found.trees, strict=True):
            t, times = tree["index"], made.drawn[tree["index"]]
            leaves = zip(tree["leaves"], exposed.pure, exposed.isolated, strict=True)
            for leaf, pure, alone in leaves:
                inside = reached[:, t] == leaf["id"]
                seen = inside & (times > 0)
                n, n_pos = int(seen.sum()), int((seen & (made.y == 1)).sum())
                bad = [
                    leaf["n"] not in (None, n),
                    leaf["n_pos"] not in (None, n_pos),
                    leaf["at_least"] is not None and leaf["at_least"] > n,
                    leaf["at_most"] is not None and leaf["at_most"] < n,
                    pure and len(np.unique(made.y[inside])) > 1,
                    alone and inside.sum() != 1,
                ]
                if any(bad):
                    out.append(f"tree {t}: {leaf}, pure {pure}, truth {n} rows, {n_pos} positive")
        rows = said["model"]["rows"]
        if rows is not None and rows > len(made.y):
            out.append(f"{rows} rows of {len(made.y)}")
    tally.update(models=1, leaves=found.summary.leaves, counted=found.summary.counted,
                 exact=found.summary.exact, pure=found.summary.pure)  # fmt: skip
    return made.about, out, tally


def campaign(first: int, models: int, folder: Path) -> tuple[list[str], Counter[str]]:
    """Check forests of seeds from `first` on; return what is wrong, a text each, and a tally."""
    wrong, tally = [], Counter[str]()
    for seed in range(first, first + models):
        about, faults, counted = check(seed, folder)
        tally += counted
        if faults:
            wrong.append(f"seed {seed}: {about}\n  " + "\n  ".join(faults[:6]))
    return wrong, tally


def main() -> None:
    given = options_of(__doc__)
    with TemporaryDirectory() as folder:
        wrong, tally = campaign(given.first, given.models, Path(folder))
    print("\n".join(wrong))
    print(f"{len(wrong)} of {given.models} forests wrong; {dict(tally)}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
