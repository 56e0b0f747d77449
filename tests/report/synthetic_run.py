"""A synthetic run with the shape of a real one, including several kinds of failures.

``python tests/report/synthetic_run.py FOLDER`` writes it, for work on the report itself.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import numpy as np

import fedtrees
from fedtrees.core import results as columns
from fedtrees.report.findings import frontiers
from fedtrees.report.results import load_rows

COLUMNS = [column.name for column in columns.COLUMNS]
SEEDS = (0, 1, 2)
FEATURES = ("age", "avg_glucose_level", "bmi", "gender", "hypertension", "smoking_status")
THREATS = {"server": ("timberstrike", "midpoint"), "client": ("timberstrike", "milp", "midpoint")}

# name, params, claimed, spent, measured, utility lost, share of the leak left, byte factor
DEFENSES = [
    ("none", "", "none", "none", "", 0.0, 1.0, 1.0),
    ("split-only", "", "structural", "structural", "", 0.002, 0.35, 0.6),
    ("masking", "", "computational", "computational", "", 0.0, 0.8, 2.0),
    ("paillier", "bits=2048", "computational", "computational", "", 0.0, 0.8, 64.0),
    ("leaf-rounding", "decimals=3", "structural", "structural", "", 0.001, 0.7, 1.0),
]
for _eps in (1, 4, 16):
    _loss, _left = 0.16 / _eps**0.7, 0.05 + 0.5 * math.log2(_eps) / 4
    _claim = f"pure-dp[epsilon={_eps},unit=histogram]"
    _spent = f"pure-dp[epsilon={_eps * 3200},unit=row]"
    DEFENSES.append(
        ("laplace-hist", f"epsilon={_eps}", _claim, _spent, "", _loss, _left, 1.0),
    )
    DEFENSES.append(
        ("split-only+laplace-hist", f";epsilon={_eps}", f"structural+{_claim}", _spent,
         f"pure-dp[epsilon={_eps / 4}]", _loss + 0.003, _left * 0.4 - 0.05, 0.6)
    )  # fmt: skip

SETTINGS = [
    ("stroke", "iid[clients=5]", "fedtree", "trees=20,depth=6", 0.842, 0.31),
    ("stroke", "dirichlet[clients=5,alpha=0.3]", "fedtree", "trees=20,depth=6", 0.828, 0.27),
    ("pima", "iid[clients=3]", "fedtree", "trees=20,depth=6", 0.826, 0.12),
    ("pima", "iid[clients=3]", "bagging", "trees=20", 0.809, 0.08),
]


def rows(settings=SETTINGS, defenses=DEFENSES, seeds=SEEDS):
    """Yield rows as dicts; the numbers depend on names and seeds only."""
    for dataset, partition, protocol, params, auc, leak in settings:
        place = {"dataset": dataset, "partition": partition}
        for seed in seeds:
            yield from _references(place, seed, auc)
        for defense in defenses:
            for seed in seeds:
                cell = {**place, "protocol": protocol, "protocol_params": params, "seed": seed}
                cell |= dict(zip(("defense", "defense_params", "claimed", "spent", "measured"),
                                 defense[:5], strict=True))  # fmt: skip
                yield from _train(cell, defense, auc)
                for threat, attacks in THREATS.items():
                    yield from _exposure({**cell, "threat": threat}, defense, attacks)
                    for attack in attacks:
                        yield from _attack({**cell, "threat": threat}, attack, defense, leak)


def _rng(*names):
    return np.random.default_rng([ord(c) for c in "/".join(map(str, names))])


def _row(cell, stage, metric="", value="", **columns):
    row = dict.fromkeys(COLUMNS, "")
    row |= {"run": "synthetic", "status": "ok", "version": fedtrees.__version__}
    row |= {**cell, "stage": stage, "metric": metric, "value": value, **columns}
    return row


def _references(place, seed, auc):
    rng = _rng("ref", *place.values(), seed)
    local = auc - 0.055 + rng.normal(0, 0.004)
    table = {"local-only": (local, local - 0.3, local + 0.05, 0.5), "majority-class": (0.5, 0.39,
             0.65, 0.65)}  # fmt: skip
    for protocol, values in table.items():
        for metric, value in zip(("auc", "f1", "accuracy", "log_loss"), values, strict=True):
            cell = {**place, "protocol": protocol, "seed": seed}
            yield _row(cell, "reference", metric, value)


def _train(cell, defense, auc):
    rng = _rng("train", cell["dataset"], cell["partition"], cell["protocol"], cell["seed"])
    defense_noise = _rng("own", cell["protocol"], defense[0], defense[1], cell["seed"])
    level = auc - defense[5] + rng.normal(0, 0.006) + defense_noise.normal(0, 0.002)
    if defense[0] == "paillier" and cell["dataset"] == "pima" and cell["protocol"] == "bagging":
        reason = "paillier guards Histogram; bagging sends whole trees"
        yield _row(cell, "train", status="skipped", reason=reason)
        return
    up = 1_400_000 * defense[7] * (0.2 if cell["protocol"] == "bagging" else 1)
    cost = {"bytes_up": up, "bytes_down": up / 9, "rounds": 140, "seconds": 2.0 + up / 2e6}
    values = {"auc": level, "f1": level - 0.2, "accuracy": level - 0.06, "log_loss": 1.3 - level}
    for metric, value in values.items():
        yield _row(cell, "train", metric, value, **cost)
    kinds = {("bytes_up", "Histogram"): up * 0.98, ("bytes_up", "Range"): up * 0.02,
             ("bytes_down", "NodeDecision"): up / 9}  # fmt: skip
    for (metric, kind), value in kinds.items():
        yield _row(cell, "train", metric, round(value), part=kind, unit="bytes", **cost)
    yield _row(cell, "train", "cpu_seconds", 1.6 * cost["seconds"], unit="seconds", **cost)
    if defense[0] in ("masking", "paillier"):
        operations = {"masks_expanded": 492} if defense[0] == "masking" else {"decrypted": 5_000}
        yield _row(cell, "train", "ciphertexts", 3 * operations.get("decrypted", 0), **cost)
        for part, value in operations.items():
            yield _row(cell, "train", "operations", value, part=part, **cost)


def _exposure(cell, defense, attacks):
    for attack in attacks:
        applies = not (attack == "midpoint" and "split-only" in defense[0])
        reason = "" if applies else "needs node statistics, which split-only withholds"
        yield _row(cell, "adversary", "applies", float(applies), attack=attack, reason=reason)


def _attack(cell, attack, defense, leak):
    if defense[0] == "paillier" and cell["dataset"] == "pima" and cell["protocol"] == "bagging":
        return
    attack_columns = {"attack": attack, "seconds": 7.5}
    if attack == "milp" and "laplace" in defense[0] and cell["seed"] == 1:
        yield _row(cell, "attack", status="timeout", reason="600 s limit", **attack_columns)
        return
    if attack == "midpoint" and "split-only" in defense[0]:
        reason = "needs node statistics, which split-only withholds"
        yield _row(cell, "attack", status="skipped", reason=reason, **attack_columns)
        return
    if attack == "milp" and defense[0] == "masking" and cell["seed"] == 2:
        reason = "ProtocolError: no tree <0> in the view & nothing else"
        yield _row(cell, "attack", status="failed", reason=reason, **attack_columns)
        return
    rng = _rng(
        "attack", *(cell[column] for column in ("dataset", "partition", "seed", "threat")), attack
    )
    defense_noise = _rng(
        "own", cell["protocol"], defense[0], defense[1], cell["seed"], cell["threat"]
    )
    share = {"timberstrike": 1.0, "milp": 0.8, "midpoint": 0.55}[attack]
    gain_of_attack = leak * share * (1.15 if cell["threat"] == "client" else 1.0)
    base = {
        "ra": (0.752, gain_of_attack),
        "exact_rows": (0.08, gain_of_attack * 0.6),
        "close_rows": (0.3, gain_of_attack),
        "leaf_mass_exact": (0.11, min(1.0, 3.2 * gain_of_attack)),
        "leaf_counts_exact": (0.05, min(1.0, 3.0 * gain_of_attack)),
    }
    base = {(metric, ""): scores for metric, scores in base.items()}
    base |= {("ra_of", name): (0.5 + 0.07 * position, gain_of_attack * (1.6 - 0.25 * position))
             for position, name in enumerate(FEATURES)}  # fmt: skip
    for (metric, part), (blind, gain) in base.items():
        advantage = gain * defense[6] + rng.normal(0, 0.008) + defense_noise.normal(0, 0.006)
        advantage = min(advantage, 1.0)  # no score is better than the best possible one
        score = blind + advantage * (1 - blind)
        score_columns = {"part": part, "blind": blind, "advantage": advantage}
        yield _row(cell, "attack", metric, score, **score_columns, **attack_columns)
    yield _row(cell, "attack", "specificity_z", 2.4 * defense[6] + rng.normal(), **attack_columns)


DISCLOSURE = [
    {"protocol": "fedtree", "defense": "none", "type": "Histogram", "from": "client",
     "to": "server", "why": "local gradient sums", "reveals": ["counts", "labels"],
     "guards": [], "count": 700, "bytes": 1_372_000},
    {"protocol": "fedtree", "defense": "none", "type": "NodeDecision", "from": "server",
     "to": "client", "why": "global split and node totals",
     "reveals": ["thresholds", "counts"], "guards": [], "count": 140, "bytes": 155_555},
    {"protocol": "fedtree", "defense": "split-only", "type": "NodeDecision", "from": "server",
     "to": "client", "why": "global split and leaf value", "reveals": ["thresholds"],
     "guards": [{"defense": "split-only", "act": "guards", "why": ""}],
     "count": 140, "bytes": 61_000},
]  # fmt: skip


def write_run(folder, table=None):
    """Write a run folder: rows.csv, suite.toml, environment.json, disclosure.json."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rows.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows() if table is None else table)
    (folder / "suite.toml").write_text(
        '[suite]\nname = "synthetic"\nseeds = [0, 1, 2]\ndatasets = ["stroke", "pima"]\n',
        encoding="utf-8",
    )
    environment = {"fedtrees": fedtrees.__version__, "python": "3.12", "numpy": "2.3"}
    (folder / "environment.json").write_text(json.dumps(environment), encoding="utf-8")
    (folder / "disclosure.json").write_text(json.dumps(DISCLOSURE), encoding="utf-8")
    return folder


class Table:
    """Rows that are added one cell at a time and read the way a report reads them."""

    def __init__(self, folder):
        self.folder, self.lines = folder, []

    def add(self, stage, defense, seed, metric="", value="", **columns):
        row = dict.fromkeys(COLUMNS, "")
        row |= {"version": fedtrees.__version__, "status": "ok", "dataset": "d", "partition": "p",
                "protocol": "q", "stage": stage, "defense": defense, "seed": seed,
                "metric": metric, "value": value}  # fmt: skip
        self.lines.append(row | columns)

    def train(self, defense, seed, auc, **columns):
        self.add("train", defense, seed, "auc", auc, **columns)

    def attack(self, defense, seed, attack, advantage, metric="ra", value=0.5, **columns):
        self.add("attack", defense, seed, metric, value, attack=attack, advantage=advantage,
                 blind=0.4, threat="t", **columns)  # fmt: skip

    def applies(self, defense, seed, *attacks, **columns):
        for attack in attacks:
            self.add(
                "adversary", defense, seed, "applies", 1.0, attack=attack, threat="t", **columns
            )

    def trouble(self, defense, seed, attack, status, reason="r"):
        self.add("attack", defense, seed, attack=attack, status=status, reason=reason, threat="t")

    def rows(self):
        return load_rows(write_run(self.folder, self.lines))

    def frontier(self, **options):
        (only,) = frontiers(self.rows(), **options)
        return only


if __name__ == "__main__":
    print(write_run(sys.argv[1]))
