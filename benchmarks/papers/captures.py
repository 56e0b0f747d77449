"""`python -m fedtrees.benchmarks.papers.captures --data-dir FOLDER`: what captures tell, measured.

Real runs on loopback of every framework that is installed, what one party reads of them, and a
control: the same reading held against shuffled labels, or values that nobody has. Printed beside
the figures of the specification and stored with every measurement.
"""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import astuple, dataclass, fields, replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedtrees.benchmarks.papers.study import markdown, options_of
from fedtrees.capture.machine_readings import machine_readings
from fedtrees.capture.model_readings import LeafRows, audited, model_readings
from fedtrees.capture.readings import Reading, readings
from fedtrees.capture.records import Capture, Record
from fedtrees.capture.truth import read_truth
from fedtrees.capture.wires import Decoded
from fedtrees.core.schema import Table
from fedtrees.data import catalogue
from fedtrees.messages.captured import (
    BestSplits,
    CollectiveCall,
    EvaluationSums,
    HistogramSegment,
    LabelShare,
    PartitionBits,
)

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "capture"
LABELLED = "values with the labels of their rows"


@dataclass(frozen=True)
class Figure:
    """One measurement: how many of how many, the same in the control, and what the spec says."""

    framework: str
    what: str
    seed: int
    measured: int
    of: int
    control: int
    control_is: str
    spec: str


@dataclass(frozen=True, eq=False)
class Seen:
    """A run that was captured: its records, all parties' rows, and the file."""

    records: list[Record]
    truth: Mapping[str, Table]
    path: Path

    def by(self, who: str) -> list[Record]:
        """Return what a party saw."""
        return [r for r in self.records if who in ("third", r.sender, *r.receivers)]

    def shuffled(self) -> dict[str, Table]:
        """Return rows with labels of other rows of the same party."""
        rng = np.random.default_rng(0)
        return {k: Table(t.X, rng.permutation(t.y)) for k, t in self.truth.items()}


def trained(script: str, folder: Path, *arguments: str) -> Seen:
    """Run one of the examples, in this process, and read what it captured."""
    sys.path.insert(0, str(EXAMPLES))
    before = sys.argv
    sys.argv = [script, *arguments, "--out", str(folder)]
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            __import__(script).main()
    finally:
        sys.argv = before
        sys.path.remove(str(EXAMPLES))
    names = {"flower_here": "node-{}", "nvflare_loopback": "site-{}"}.get(script)
    files = sorted(folder.glob("worker-*.csv"))
    by_rank = names is None or "vertical" in arguments or "histogram" in arguments
    named = [p.stem if by_rank else str(names).format(k) for k, p in enumerate(files, start=1)]
    told = [f"{name}={path}" for name, path in zip(named, files, strict=True)]
    path = folder / "run.capture"
    return Seen(list(Decoded(Capture(path))), read_truth(told, "label"), path)


def boosting(**more: Any) -> str:
    """Return XGBoost's parameters as an example takes them."""
    return json.dumps({"objective": "binary:logistic", "max_depth": 3, **more})


def held(found: list[Reading], what: str, truth: Mapping[str, Table]) -> tuple[int, int]:
    """Return how many facts of a kind are told, and how many are so."""
    some = [r for r in found if r.what == what and r.owner in truth]
    told = sum(len(r.facts) for r in some)
    return told, told - sum(r.wrong(truth[r.owner]) for r in some)


def of_rows(seen: Seen, who: str, framework: str, spec: tuple[str, str]) -> Iterator[Figure]:
    """Yield what XGBoost's sketches and histograms tell of others."""
    found = readings(seen.by(who), (who,))
    others = {k: t for k, t in seen.truth.items() if k != who}
    values = sum(len(np.unique(c)) for t in others.values() for c in t.X.T)
    told, right = held(found, "values of a column, each with its rows", others)
    nobody = told - right
    yield Figure(framework, f"values with their rows, {who}", 0, right, values, nobody,
                 "of nobody", spec[0])  # fmt: skip
    told, right = held(found, LABELLED, others)
    _, chance = held(found, LABELLED, {k: t for k, t in seen.shuffled().items() if k != who})
    yield Figure(framework, f"values with labels, {who}", 0, right, told, chance,
                 "labels shuffled", spec[1])  # fmt: skip
    told, right = held(found, "number of positives", others)
    yield Figure(framework, f"positives of each, {who}", 0, right, len(others), told - right,
                 "wrong", "all")  # fmt: skip


def xgboost_server(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield figures of the federated server, rows split."""
    watched = (
        '{"objective": "binary:logistic", "max_depth": 3, "eval_metric": "auc", "watched": true}'
    )
    seen = trained("loopback", folder, "--over", "xgboost", "--csv", csv_file, "--trees", "3",
                   "--params", watched)  # fmt: skip
    yield from of_rows(seen, "server", "XGBoost server", ("2,148 of 2,152", "own histograms"))
    means = {r.sender: r.message for r in seen.records if isinstance(r.message, LabelShare)}
    rows = sum(m.rows for m in means.values())
    right = sum(abs(m.share * rows - seen.truth[k].y.sum()) < 0.01 for k, m in means.items())
    yield Figure("XGBoost server", "label means", 0, right, len(means), 0, "", "at once")
    sums = [(r.sender, r.message.sums[1]) for r in seen.records
            if isinstance(r.message, EvaluationSums) and r.sender in seen.truth]  # fmt: skip
    product = {k: float(t.y.sum() * (len(t) - t.y.sum())) for k, t in seen.truth.items()}
    right = len({k for k, value in sums if abs(value - product[k]) < 0.5})
    yield Figure("XGBoost server", "positives x negatives in the AUC", 0, right, len(product), 0,
                 "", "14,940 = 90 x 166")  # fmt: skip


def xgboost_columns(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield figures of the federated server, columns split."""
    seen = trained("loopback", folder, "--over", "xgboost", "--csv", csv_file, "--trees", "3",
                   "--params", boosting(vertical=True))  # fmt: skip
    yield from vertical(seen, "XGBoost columns", "worker-1", "768 of 768 (414)")
    best = [r.message for r in seen.records
            if isinstance(r.message, BestSplits) and r.receivers == ("server",)]  # fmt: skip
    model, values, total = set[tuple[int, int, int]](), 0, 0
    gains: dict[tuple[int, int], list[tuple[float, int]]] = {}
    for m in best:
        for node, gain in zip(m.node.tolist(), m.gain.tolist(), strict=True):
            gains.setdefault((m.round, node), []).append((gain, -m.first))
    for m in best:
        X = seen.truth[m.owner].X
        for k in np.flatnonzero(m.gain > 0).tolist():
            total += 1
            values += bool((X[:, m.feature[k] - m.first] == m.threshold[k]).any())
            if max(gains[m.round, int(m.node[k])]) != (float(m.gain[k]), -m.first):
                model.add((m.round, int(m.node[k]), m.first))
    yield Figure("XGBoost columns", "thresholds that are values", 0, values, total, 0, "",
                 "63 of 63")  # fmt: skip
    yield Figure("XGBoost columns", "splits that lost and cross", 0, len(model), total, 0, "",
                 "42 of 63")  # fmt: skip
    right, told = routed(seen, best)
    yield Figure("XGBoost columns", "first splits' rows by bits", 0, right, told, 0, "",
                 "768 of 768")  # fmt: skip


def routed(seen: Seen, best: list[BestSplits]) -> tuple[int, int]:
    """Return of how many rows the bits of first splits are what the owner's column says."""
    right = told = 0
    roots = {m.round: max((x for x in best if x.round == m.round and not x.level),
                          key=lambda x: float(x.gain[0])) for m in best}  # fmt: skip
    for r in seen.records:
        m = r.message
        if isinstance(m, PartitionBits) and r.receivers == ("server",) and not m.level:
            root = roots[m.round]
            if root.owner == m.owner:
                x = seen.truth[m.owner].X[:, root.feature[0] - root.first]
                right += int(((x < root.threshold[0]) == m.left).sum())
                told += len(x)
    return right, told


def vertical(seen: Seen, framework: str, who: str, spec: str) -> Iterator[Figure]:
    """Yield how many labels one party reads where columns are split."""
    found = readings(seen.by(who), (who,))
    what = "labels of rows, in their order"
    _, right = held(found, what, seen.truth)
    _, chance = held(found, what, seen.shuffled())
    yield Figure(framework, f"labels, {who}", 0, right, len(seen.truth["worker-0"]), chance,
                 "labels shuffled", spec)  # fmt: skip


def ring(workers: int) -> Callable[[Path, str], Iterator[Figure]]:
    """Return what yields the figures of so many workers on a ring."""

    def figures(folder: Path, csv_file: str) -> Iterator[Figure]:
        seen = trained("loopback", folder, "--over", "rabit", "--csv", csv_file, "--trees", "3",
                       "--workers", str(workers), "--params", boosting())  # fmt: skip
        name = f"XGBoost ring, {workers}"
        first = [r.message for r in seen.by("worker-1") if isinstance(r.message, HistogramSegment)
                 and r.message.tree == r.message.level == 0]  # fmt: skip
        numbers = max(m.first + len(m.sums) for m in first)
        own = sum(len(m.sums) for m in first if m.parties == "worker-0")
        yield Figure(name, "numbers of worker-0's root, worker-1", 0, own, numbers, 0, "",
                     {2: "139 of 278", 3: "92 of 278"}[workers])  # fmt: skip
        spec = "835 of 835, 836 of 836" if workers == 3 else ""
        yield from of_rows(seen, "worker-1", name, (spec, ""))

    return figures


def lightgbm(machines: int) -> Callable[[Path, str], Iterator[Figure]]:
    """Return what yields the figures of so many of LightGBM's machines."""

    def figures(folder: Path, csv_file: str) -> Iterator[Figure]:
        seen = trained("loopback", folder, "--over", "lightgbm", "--rows", str(250 * machines),
                       "--columns", "12", "--digits", "3", "--workers", str(machines), "--trees",
                       "2", "--seed", Path(csv_file).stem.rpartition("-")[2], "--params",
                       '{"objective": "binary", "min_data_in_bin": 1, "min_data_in_leaf": 5, '
                       '"num_leaves": 4}')  # fmt: skip
        name = f"LightGBM, {machines}"
        who = "worker-1"  # of three, the leader of the odd one
        found = list(machine_readings(seen.by(who), (who,)))
        others = {k: t for k, t in seen.truth.items() if k != who}
        wide = 12 // machines
        cells = sum(len(np.unique(c)) for k, t in others.items()
                    for c in t.X.T[wide * int(k[-1]) : wide * (int(k[-1]) + 1)])  # fmt: skip
        told, right = held(found, "values off the bins of a column", others)
        spec = {2: "1,479 of 1,479", 3: "984 of 984, 992 of 992"}.get(machines, "")
        yield Figure(name, f"values off bins, {who}", 0, right, cells, told - right, "of nobody",
                     spec)  # fmt: skip
        told, right = held(found, LABELLED, others)
        _, chance = held(found, LABELLED, {k: t for k, t in seen.shuffled().items() if k != who})
        spec = {2: "732 (0)", 3: "984 (0)"}.get(machines, "")
        yield Figure(name, f"values with labels, {who}", 0, right, told, chance, "labels shuffled",
                     spec)  # fmt: skip
        told, right = held(found, "number of positives", others)
        yield Figure(name, f"positives of each, {who}", 0, right, len(others), told - right,
                     "wrong", "all")  # fmt: skip

    return figures


def trees(script: str, framework: str, spec: str) -> Callable[[Path, str], Iterator[Figure]]:
    """Return what yields the figures of bagging."""

    def figures(folder: Path, csv_file: str) -> Iterator[Figure]:
        seen = trained(script, folder, "bagging", "--csv", csv_file, "--trees", "2")
        for who in ("server", min(seen.truth)):
            shared = audited(Capture(seen.path), who)
            assert shared is not None
            others = {k: t for k, t in seen.truth.items() if k != who}
            shuffled = {k: t for k, t in seen.shuffled().items() if k != who}
            right = chance = total = 0
            for r in model_readings(*shared, who):
                if isinstance(r, LeafRows):
                    own = [others[r.owner]] if r.owner in others else [*others.values()]
                    by_chance = [shuffled[r.owner]] if r.owner in others else [*shuffled.values()]
                    total += len(r.facts)
                    right += len(r.facts) - r.wrong_of_all(own)
                    chance += len(r.facts) - r.wrong_of_all(by_chance)
            first = [t for t in shared[1].trees if t.index is not None][: len(seen.truth)]
            leaves = sum(len(t.leaf) for t in first) if who == "server" else total
            yield Figure(framework, f"leaves of first trees, {who}", 0, right, max(leaves, total),
                         chance, "labels shuffled", spec)  # fmt: skip

    return figures


def nvflare_vertical(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield what is read of NVFlare's columns with `secure=True`."""
    seen = trained("nvflare_loopback", folder, "vertical", "--secure", "--csv", csv_file)
    yield from vertical(seen, "NVFlare secure", "server", "768 of 768")
    calls = [r.message for r in Capture(seen.path) if isinstance(r.message, CollectiveCall)]
    sealed = sum(m.sealed for m in calls)
    yield Figure("NVFlare secure", "messages that are encrypted", 0, sealed, len(calls), 0, "",
                 "0")  # fmt: skip


def nvflare_histogram(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield what NVFlare's server reads of histograms."""
    seen = trained("nvflare_loopback", folder, "histogram", "--csv", csv_file, "--trees", "3")
    yield from of_rows(seen, "server", "NVFlare histograms", ("2,148 of 2,152", ""))


#: By framework: what it needs, and what yields its figures.
ALL: Mapping[str, tuple[str, Callable[[Path, str], Iterator[Figure]]]] = {
    "xgboost-server": ("xgboost", xgboost_server),
    "xgboost-columns": ("xgboost", xgboost_columns),
    "xgboost-ring-2": ("xgboost", ring(2)),
    "xgboost-ring-3": ("xgboost", ring(3)),
    "lightgbm-2": ("lightgbm", lightgbm(2)),
    "lightgbm-3": ("lightgbm", lightgbm(3)),
    "flower-bagging": ("flwr", trees("flower_here", "Flower bagging", "24 of 24")),
    "nvflare-bagging": ("nvflare", trees("nvflare_loopback", "NVFlare bagging", "244 of 244")),
    "nvflare-vertical": ("nvflare", nvflare_vertical),
    "nvflare-histogram": ("nvflare", nvflare_histogram),
}


def figures(seeds: int, data_dir: str | None) -> Iterator[Figure]:
    """Yield all figures on Pima, its rows in an order by each seed."""
    data = catalogue.load("pima", data_dir)
    whole = np.column_stack([data.table.X, data.table.y])
    for name, (module, made) in ALL.items():
        if find_spec(module) is None:
            print(f"{name}: {module} is not installed", file=sys.stderr)
            continue
        for seed in range(seeds):
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"rows-{seed}.csv"
                rows = whole[np.random.default_rng(seed).permutation(len(whole))]
                head = ",".join([*(f"f{k}" for k in range(rows.shape[1] - 1)), "label"])
                np.savetxt(path, rows, "%.9g", ",", header=head, comments="")
                print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
                for figure in made(Path(folder) / name, str(path)):
                    yield replace(figure, seed=seed)


def table(found: list[Figure]) -> str:
    """Return figures beside those of the specification, seeds side by side."""
    lines: dict[tuple[str, str], list[Figure]] = {}
    for figure in found:
        lines.setdefault((figure.framework, figure.what), []).append(figure)
    rows = [
        [
            framework, what, ", ".join(f"{f.measured:,} of {f.of:,}" for f in every),
            ", ".join(f"{f.control:,}" for f in every) + f" {every[0].control_is}"
            if every[0].control_is else "", every[0].spec,
        ]
        for (framework, what), every in lines.items()
    ]  # fmt: skip
    return markdown(["framework", "what", "read", "control", "specification"], rows)


def main() -> None:
    """Run everything; write the CSV as figures come, and print the table."""
    asked: Any = options_of("captures", "--out", "--seeds", seeds=2)
    found = list[Figure]()
    with open(asked.out or "captures.csv", "w", newline="", buffering=1) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f.name for f in fields(Figure)])
        for figure in figures(asked.seeds, asked.data_dir):
            writer.writerow(astuple(figure))
            found.append(figure)
    print(table(found))


if __name__ == "__main__":
    main()
