"""Utility of the models of TimberStrike: AUC and F1 in Tables 1 and 8 of Di Gennaro et al. (2025).

The models are those that the studies `timberstrike_table4`, `timberstrike_table6` and
`timberstrike_table8` attack, except that the rows of FedXGBllr are those of `fedxgbllr`, which
combines the local ensembles. A seed draws the test rows, the partition and the trees. Each result
is stored as one line of a CSV file, so that an interrupted study continues.
"""

import csv
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from math import nan
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedtrees.benchmarks.papers.comparisons import Comparison, read_published
from fedtrees.benchmarks.papers.study import Options, Output, Study, train_federation
from fedtrees.core.specs import Spec
from fedtrees.experiments.suite import Suite

#: Suites that define the trainings of each table.
SUITES = {"Table 1": ("timberstrike_table4", "timberstrike_table6"),
          "Table 8": ("timberstrike_table8",)}  # fmt: skip
#: Protocol that predicts, where the attacked protocol only defines the trees.
PREDICTS = {"local-ensembles": "fedxgbllr"}
SCORES = ("AUC", "F1")


class Model(NamedTuple):
    """A training of one of the suites."""

    data: str
    partition: Spec
    protocol: Spec
    defense: str


def models() -> dict[tuple[str, str], Model]:
    """Return the training of each published value, by item and setting."""
    trainings: dict[tuple[str, str], Model] = {}
    for item, suites in SUITES.items():
        for grid in (grid for name in suites for grid in Suite.load(name).grids):
            for protocol in grid.protocols:
                where = f"{protocol.name}, depth {protocol.params['max_depth']}"
                for defense in grid.defenses:
                    data, partition = grid.data[0].name, grid.partitions[0]
                    budgets = [f"epsilon {s.params['epsilon']:g}" for s in defense.parts]
                    setting = ", ".join((where, *budgets) if budgets else (data, where))
                    trainings[item, setting] = Model(data, partition, protocol, str(defense))
    return trainings


def utility(model: Model, seed: int, data_dir: str | None) -> dict[str, float]:
    """Train a model, and return its AUC, and its F1 of the positive class, on the test rows."""
    from sklearn.metrics import f1_score, roc_auc_score

    name = PREDICTS.get(model.protocol.name, model.protocol.name)
    protocol = Spec(name, model.protocol.params)
    training, federation, _ = train_federation(
        model.data, protocol, 3, seed, data_dir, partition=model.partition, defense=model.defense
    )
    y: NDArray[np.int64] = federation.test.y
    scores = training.predict(federation.test.X)
    return {"AUC": float(roc_auc_score(y, scores)), "F1": float(f1_score(y, scores > 0.5))}


def _read(path: Path) -> dict[tuple[str, str, int], dict[str, float]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (line["item"], line["setting"], int(line["seed"])): {s: float(line[s]) for s in SCORES}
            for line in csv.DictReader(file)
        }


def run(options: Namespace) -> Iterator[Output]:
    """Complete the results, and yield the published values next to ours."""
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "utility.csv"
    done, trainings = _read(path), models()
    cells = [
        c for c in read_published("timberstrike")
        if c.score in SCORES and (c.item, c.setting) in trainings
    ]  # fmt: skip
    for seed in range(options.seeds):
        for item, setting in dict.fromkeys((c.item, c.setting) for c in cells):
            if (item, setting, seed) in done:
                continue
            scores = utility(trainings[item, setting], seed, options.data_dir)
            done[item, setting, seed] = scores
            new = not path.exists()
            with path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                if new:
                    writer.writerow(("item", "setting", "seed", *SCORES))
                writer.writerow((item, setting, seed, *(f"{scores[s]:.6g}" for s in SCORES)))
    yield from compare(cells, done)


def compare(
    cells: list[Comparison], done: dict[tuple[str, str, int], dict[str, float]]
) -> Iterator[Comparison]:
    """Yield the published values with the mean and the deviation of the results over seeds."""
    for c in cells:
        values = [s[c.score] for (*key, _), s in done.items() if key == [c.item, c.setting]]
        if values:
            spread = stdev(values) if len(values) > 1 else nan
            yield replace(c, ours=mean(values), deviation=spread, seeds=len(values))


OPTIONS: Options = {
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
