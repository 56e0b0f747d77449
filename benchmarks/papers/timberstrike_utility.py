"""Utility of the models of TimberStrike: AUC and F1 in Tables 1 and 8 of Di Gennaro et al. (2025).

The models are those that the studies `timberstrike_table4`, `timberstrike_table6` and
`timberstrike_table8` attack, except that the rows of FedXGBllr are those of `fedxgbllr`, which
combines the local ensembles. A seed draws the test rows, the partition and the trees. Each result
is stored as one line of a CSV file, so that an interrupted study continues.

The scores are those of the authors' code, which differ from AUC and F1 of all test rows
(`scores_as_published`).
"""

from argparse import Namespace
from collections.abc import Iterator
from fnmatch import fnmatchcase
from math import exp
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedtrees.benchmarks.papers.comparisons import read_published
from fedtrees.benchmarks.papers.stored_scores import StoredScores
from fedtrees.benchmarks.papers.study import SETTING, Options, Output, Study, train_federation
from fedtrees.benchmarks.papers.timberstrike_seeds import Run, runs
from fedtrees.core.specs import Spec

#: Protocol that predicts, where the attacked protocol only defines the trees.
PREDICTS = {"local-ensembles": "fedxgbllr"}
SCORES = ("AUC", "F1")


def models() -> dict[tuple[str, str], Run]:
    """Return the training of each published value, by item and setting."""
    trainings = {("Table 8", setting): training for setting, training in runs("Table 8").items()}
    for item in ("Table 4", "Table 6"):
        for setting, training in runs(item).items():
            trainings["Table 1", f"{training.data}, {setting}"] = training
    return trainings


def scores_as_published(
    protocol: str, y: NDArray[np.int64], probabilities: NDArray[np.float64]
) -> dict[str, float]:
    """Return AUC and F1 of the positive class as the authors' code computes them.

    Both are means over parts of the test rows, weighted by size:

    - FedXGBllr: batches of 32 rows (``fedxgbllr/utils.py``). A batch without any positive row has
      an AUC of 0. On Stroke, 5% of the test rows are positive, so that the mean is about 0.15 below
      the AUC of all rows.
    - Bagging, cyclic training and NVFlare: three equal parts, one per client.
    - FedTree: all rows. Its F1 compares the margin with 0.5, which is a probability of 0.62
      (``BinaryClassMetric::get_score``).
    """
    from sklearn.metrics import f1_score, roc_auc_score

    n, threshold = len(y), 0.5
    size = n // 3
    if protocol == "fedxgbllr":
        size = 32
    elif protocol == "fedtree-hist":
        size, threshold = n, 1 / (1 + exp(-0.5))
    else:
        n = 3 * size
    scores: dict[str, list[float]] = {"AUC": [], "F1": []}
    for begin in range(0, n, size):
        part = slice(begin, min(begin + size, n))
        labels, positive = y[part], probabilities[part] >= threshold
        auc = roc_auc_score(labels, probabilities[part]) if len(np.unique(labels)) == 2 else 0.0
        scores["AUC"].append(auc * len(labels))
        scores["F1"].append(f1_score(labels, positive, zero_division=0) * len(labels))
    return {score: float(sum(values) / n) for score, values in scores.items()}


def utility(model: Run, seed: int, data_dir: str | None) -> dict[str, float]:
    """Train a model, and return its AUC and F1 on the test rows as the authors' code does."""
    name = PREDICTS.get(model.protocol.name, model.protocol.name)
    protocol = Spec(name, model.protocol.params)
    training, federation, _ = train_federation(
        model.data, protocol, 3, seed, data_dir, partition=model.partition, defense=model.defense
    )
    probabilities = training.predict(federation.test.X)
    return scores_as_published(name, federation.test.y, probabilities)


def run(options: Namespace) -> Iterator[Output]:
    """Complete the results, and yield the published values next to ours."""
    options.out.mkdir(parents=True, exist_ok=True)
    results = StoredScores(options.out / "utility.csv", ("item", "setting"))
    cells = [c for c in read_published("timberstrike") if c.score in SCORES]
    trainings = models()
    chosen = [c for c in cells if fnmatchcase(c.setting, options.setting)]
    for seed in range(options.seeds):
        for key in dict.fromkeys((c.item, c.setting) for c in chosen):
            model = trainings[key]
            results.complete(key, seed, lambda m=model, k=seed: utility(m, k, options.data_dir))
    for c in cells:
        values = results.values((c.item, c.setting), c.score)
        if values:
            yield c.with_values(values)


OPTIONS: Options = SETTING | {
    "--out": {
        "type": Path,
        "default": Path("runs/timberstrike_utility"),
        "help": "folder of results, which is continued",
    },
    "--seeds": {"type": int, "default": 3, "help": "number of seeds"},
}
STUDIES = {
    "timberstrike_utility": Study(
        "AUC and F1 of the models of Di Gennaro et al. (2025), Tables 1 and 8.", run, OPTIONS
    )
}
