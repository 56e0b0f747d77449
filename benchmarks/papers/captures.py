"""Measure what one party infers from captured messages of other frameworks.

``python -m fedtrees.benchmarks.papers captures --data-dir FOLDER`` runs every installed framework
on the local machine, captures its messages, and counts the facts that one party reads from them. As
a control, the same reading is compared with shuffled labels or with values of no party. The figures
are printed next to those of the specification and stored with every measurement.
"""

import csv
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import astuple, dataclass, fields, replace
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from fedtrees.benchmarks.papers.study import Study
from fedtrees.benchmarks.papers.tables import Table as TextTable
from fedtrees.capture.attack import read_party_tables
from fedtrees.capture.formats import Decoded
from fedtrees.capture.readings import (
    LeafRows,
    RevealedFacts,
    audited,
    machine_readings,
    model_readings,
    readings,
)
from fedtrees.capture.records import Capture, Record
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
    """One measurement.

    Attributes
    ----------
    framework, what : str
        Framework, and the kind of fact.
    seed : int
        Seed of the order of rows.
    measured, of : int
        Number of correct facts, and their total.
    control : int
        Number of correct facts in the control.
    control_is : str
        Description of the control.
    spec : str
        The figure of the specification.
    """

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
    """A captured run: its records, the rows of all parties, and the file."""

    records: list[Record]
    truth: Mapping[str, Table]
    path: Path

    def by(self, who: str) -> list[Record]:
        """Return the records that a party saw."""
        return [r for r in self.records if who in ("third", r.sender, *r.receivers)]

    def shuffled(self) -> dict[str, Table]:
        """Return the rows of each party with its labels in random order."""
        rng = np.random.default_rng(0)
        return {k: Table(t.X, rng.permutation(t.y)) for k, t in self.truth.items()}


def run_example(script: str, folder: Path, *arguments: str) -> Seen:
    """Run one of the example scripts in this process and read the capture.

    Parameters
    ----------
    script : str
        Name of the example.
    folder : Path
        Output folder.
    *arguments : str
        Further command-line arguments.
    """
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
    # Parties are named by rank in these runs, and by the framework otherwise.
    by_rank = names is None or "vertical" in arguments or "histogram" in arguments
    named = [p.stem if by_rank else str(names).format(k) for k, p in enumerate(files, start=1)]
    truth_files = [f"{name}={path}" for name, path in zip(named, files, strict=True)]
    path = folder / "run.capture"
    return Seen(list(Decoded(Capture(path))), read_party_tables(truth_files, "label"), path)


def boosting(**more: Any) -> str:
    """Return XGBoost's parameters as the JSON text that the examples expect."""
    return json.dumps({"objective": "binary:logistic", "max_depth": 3, **more})


def count_correct_facts(
    party_readings: list[RevealedFacts], what: str, truth: Mapping[str, Table]
) -> tuple[int, int]:
    """Return how many facts of a kind were read, and how many of them are correct.

    Parameters
    ----------
    party_readings : list of Reading
        Readings of one party.
    what : str
        Kind of fact.
    truth : mapping of str to Table
        Rows of the parties.
    """
    readings_of_kind = [r for r in party_readings if r.what == what and r.owner in truth]
    n_facts = sum(len(r.facts) for r in readings_of_kind)
    return n_facts, n_facts - sum(r.wrong(truth[r.owner]) for r in readings_of_kind)


def figure(
    framework: str, what: str, facts: tuple[int, int], spec: str, control: int = 0,
    control_is: str = "",
) -> Figure:  # fmt: skip
    """Return a measurement of (correct, all) facts. Its seed is filled in by `figures`."""
    return Figure(framework, what, 0, *facts, control, control_is, spec)


def of_labels(
    seen: Seen, inferred: list[RevealedFacts], who: str, framework: str, spec: str
) -> Iterator[Figure]:
    """Yield how many values are read with the labels of their rows, and the numbers of positives.

    Parameters
    ----------
    seen : Seen
        The captured run.
    inferred : list of Reading
        Readings of one party.
    who : str
        Party that reads.
    framework : str
        Name of the framework in the table.
    spec : str
        Figure of the specification for labels.
    """
    tables = {k: t for k, t in seen.truth.items() if k != who}
    shuffled = {k: t for k, t in seen.shuffled().items() if k != who}
    n_facts, right = count_correct_facts(inferred, LABELLED, tables)
    _, chance = count_correct_facts(inferred, LABELLED, shuffled)
    yield figure(
        framework, f"values with labels, {who}", (right, n_facts), spec, chance, "labels shuffled"
    )
    n_facts, right = count_correct_facts(inferred, "number of positives", tables)
    yield figure(
        framework, f"positives of each, {who}", (right, len(tables)), "all", n_facts - right,
        "wrong",
    )  # fmt: skip


def of_rows(seen: Seen, who: str, framework: str, spec: tuple[str, str]) -> Iterator[Figure]:
    """Yield figures about rows of other parties, from XGBoost's sketches and histograms.

    Parameters
    ----------
    seen : Seen
        The captured run.
    who : str
        Party that reads.
    framework : str
        Name of the framework in the table.
    spec : tuple of str
        Figures of the specification, for values and for labels.
    """
    inferred = readings(seen.by(who), (who,))
    tables = {k: t for k, t in seen.truth.items() if k != who}
    values = sum(len(np.unique(c)) for t in tables.values() for c in t.X.T)
    n_facts, right = count_correct_facts(inferred, "values of a column, each with its rows", tables)
    what = f"values with their rows, {who}"
    yield figure(framework, what, (right, values), spec[0], n_facts - right, "of nobody")
    yield from of_labels(seen, inferred, who, framework, spec[1])


def xgboost_server(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield figures of XGBoost's federated server, horizontal partition."""
    watched = (
        '{"objective": "binary:logistic", "max_depth": 3, "eval_metric": "auc", "watched": true}'
    )
    seen = run_example("loopback", folder, "--over", "xgboost", "--csv", csv_file, "--trees", "3",
                       "--params", watched)  # fmt: skip
    yield from of_rows(seen, "server", "XGBoost server", ("2,148 of 2,152", "own histograms"))
    means = {r.sender: r.message for r in seen.records if isinstance(r.message, LabelShare)}
    rows = sum(m.rows for m in means.values())
    right = sum(abs(m.share * rows - seen.truth[k].y.sum()) < 0.01 for k, m in means.items())
    yield figure("XGBoost server", "label means", (right, len(means)), "at once")
    sums = [(r.sender, r.message.sums[1]) for r in seen.records
            if isinstance(r.message, EvaluationSums) and r.sender in seen.truth]  # fmt: skip
    product = {k: float(t.y.sum() * (len(t) - t.y.sum())) for k, t in seen.truth.items()}
    right = len({k for k, value in sums if abs(value - product[k]) < 0.5})
    what = "positives x negatives in the AUC"
    yield figure("XGBoost server", what, (right, len(product)), "14,940 = 90 x 166")


def xgboost_columns(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield figures of XGBoost's federated server, vertical partition."""
    seen = run_example("loopback", folder, "--over", "xgboost", "--csv", csv_file, "--trees", "3",
                       "--params", boosting(vertical=True))  # fmt: skip
    yield from vertical(seen, "XGBoost columns", "worker-1", "768 of 768 (414)")
    best = [r.message for r in seen.records
            if isinstance(r.message, BestSplits) and r.receivers == ("server",)]  # fmt: skip
    # Splits with a positive gain, of which only the one with the largest gain per node is chosen.
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
    name = "XGBoost columns"
    yield figure(name, "thresholds that are values", (values, total), "63 of 63")
    yield figure(name, "splits that lost and cross", (len(model), total), "42 of 63")
    bits = count_routed_bits(seen, best)
    yield figure(name, "first splits' rows by bits", bits, "768 of 768")


def count_routed_bits(seen: Seen, best: list[BestSplits]) -> tuple[int, int]:
    """Return how many side bits of root splits agree with the owner's column, and their number."""
    right = total = 0
    roots = {m.round: max((x for x in best if x.round == m.round and not x.level),
                          key=lambda x: float(x.gain[0])) for m in best}  # fmt: skip
    for r in seen.records:
        m = r.message
        if isinstance(m, PartitionBits) and r.receivers == ("server",) and not m.level:
            root = roots[m.round]
            if root.owner == m.owner:
                x = seen.truth[m.owner].X[:, root.feature[0] - root.first]
                right += int(((x < root.threshold[0]) == m.left).sum())
                total += len(x)
    return right, total


def vertical(seen: Seen, framework: str, who: str, spec: str) -> Iterator[Figure]:
    """Yield how many labels one party reads in a vertical partition.

    Parameters
    ----------
    seen : Seen
        The captured run.
    framework : str
        Name of the framework in the table.
    who : str
        Party that reads.
    spec : str
        Figure of the specification.
    """
    inferred = readings(seen.by(who), (who,))
    fact_kind = "labels of rows, in their order"
    _, right = count_correct_facts(inferred, fact_kind, seen.truth)
    _, chance = count_correct_facts(inferred, fact_kind, seen.shuffled())
    facts = (right, len(seen.truth["worker-0"]))
    yield figure(framework, f"labels, {who}", facts, spec, chance, "labels shuffled")


def ring(workers: int) -> Callable[[Path, str], Iterator[Figure]]:
    """Return a function that yields the figures of a ring of workers."""

    def figures(folder: Path, csv_file: str) -> Iterator[Figure]:
        seen = run_example("loopback", folder, "--over", "rabit", "--csv", csv_file, "--trees", "3",
                           "--workers", str(workers), "--params", boosting())  # fmt: skip
        name = f"XGBoost ring, {workers}"
        first = [r.message for r in seen.by("worker-1") if isinstance(r.message, HistogramSegment)
                 and r.message.tree == r.message.level == 0]  # fmt: skip
        numbers = max(m.first + len(m.sums) for m in first)
        n_single_worker = sum(len(m.sums) for m in first if m.parties == "worker-0")
        spec = {2: "139 of 278", 3: "92 of 278"}[workers]
        what = "numbers of worker-0's root, worker-1"
        yield figure(name, what, (n_single_worker, numbers), spec)
        spec = "835 of 835, 836 of 836" if workers == 3 else ""
        yield from of_rows(seen, "worker-1", name, (spec, ""))

    return figures


def lightgbm(machines: int) -> Callable[[Path, str], Iterator[Figure]]:
    """Return a function that yields the figures of LightGBM machines."""

    def figures(folder: Path, csv_file: str) -> Iterator[Figure]:
        seen = run_example("loopback", folder, "--over", "lightgbm", "--rows", str(250 * machines),
                           "--columns", "12", "--digits", "3", "--workers", str(machines),
                           "--trees", "2", "--seed", Path(csv_file).stem.rpartition("-")[2],
                           "--params",
                           '{"objective": "binary", "min_data_in_bin": 1, "min_data_in_leaf": 5, '
                           '"num_leaves": 4}')  # fmt: skip
        name = f"LightGBM, {machines}"
        who = "worker-1"  # of three, the leader of the odd one
        inferred = list(machine_readings(seen.by(who), (who,)))
        tables = {k: t for k, t in seen.truth.items() if k != who}
        # Each machine computes the bins of a block of columns of equal width.
        wide = 12 // machines
        cells = sum(len(np.unique(c)) for k, t in tables.items()
                    for c in t.X.T[wide * int(k[-1]) : wide * (int(k[-1]) + 1)])  # fmt: skip
        n_facts, right = count_correct_facts(inferred, "values off the bins of a column", tables)
        spec = {2: "1,479 of 1,479", 3: "984 of 984, 992 of 992"}.get(machines, "")
        what = f"values off bins, {who}"
        yield figure(name, what, (right, cells), spec, n_facts - right, "of nobody")
        spec = {2: "732 (0)", 3: "984 (0)"}.get(machines, "")
        yield from of_labels(seen, inferred, who, name, spec)

    return figures


def trees(script: str, framework: str, spec: str) -> Callable[[Path, str], Iterator[Figure]]:
    """Return a function that yields the figures of a bagging federation.

    Parameters
    ----------
    script : str
        Example to run.
    framework : str
        Name of the framework in the table.
    spec : str
        Figure of the specification.
    """

    def figures(folder: Path, csv_file: str) -> Iterator[Figure]:
        seen = run_example(script, folder, "bagging", "--csv", csv_file, "--trees", "2")
        for who in ("server", min(seen.truth)):
            shared = audited(Capture(seen.path), who)
            assert shared is not None
            tables = {k: t for k, t in seen.truth.items() if k != who}
            shuffled = {k: t for k, t in seen.shuffled().items() if k != who}
            right = chance = total = 0
            for r in model_readings(*shared, who):
                if isinstance(r, LeafRows):
                    true_tables = [tables[r.owner]] if r.owner in tables else [*tables.values()]
                    by_chance = [shuffled[r.owner]] if r.owner in tables else [*shuffled.values()]
                    total += len(r.facts)
                    right += len(r.facts) - r.wrong_of_all(true_tables)
                    chance += len(r.facts) - r.wrong_of_all(by_chance)
            first = [t for t in shared[1].trees if t.index is not None][: len(seen.truth)]
            leaves = sum(len(t.leaf) for t in first) if who == "server" else total
            what, facts = f"leaves of first trees, {who}", (right, max(leaves, total))
            yield figure(framework, what, facts, spec, chance, "labels shuffled")

    return figures


def nvflare_vertical(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield the figures of NVFlare's vertical partition with `secure=True`."""
    seen = run_example("nvflare_loopback", folder, "vertical", "--secure", "--csv", csv_file)
    yield from vertical(seen, "NVFlare secure", "server", "768 of 768")
    calls = [r.message for r in Capture(seen.path) if isinstance(r.message, CollectiveCall)]
    sealed = sum(m.sealed for m in calls)
    yield figure("NVFlare secure", "messages that are encrypted", (sealed, len(calls)), "0")


def nvflare_histogram(folder: Path, csv_file: str) -> Iterator[Figure]:
    """Yield the figures of NVFlare's server with histograms."""
    seen = run_example("nvflare_loopback", folder, "histogram", "--csv", csv_file, "--trees", "3")
    yield from of_rows(seen, "server", "NVFlare histograms", ("2,148 of 2,152", ""))


#: Required package, and the function that yields the figures, by framework.
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
    """Yield all figures on Pima, with one order of rows per seed."""
    data = catalogue.load("pima", data_dir)
    complete_rows = np.column_stack([data.table.X, data.table.y])
    for name, (module, figures_of) in ALL.items():
        if find_spec(module) is None:
            print(f"{name}: {module} is not installed", file=sys.stderr)
            continue
        for seed in range(seeds):
            with TemporaryDirectory() as folder:
                path = Path(folder) / f"rows-{seed}.csv"
                rows = complete_rows[np.random.default_rng(seed).permutation(len(complete_rows))]
                head = ",".join([*(f"f{k}" for k in range(rows.shape[1] - 1)), "label"])
                np.savetxt(path, rows, "%.9g", ",", header=head, comments="")
                print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
                for one in figures_of(Path(folder) / name, str(path)):
                    yield replace(one, seed=seed)


def table(collected: list[Figure]) -> TextTable:
    """Return the figures next to those of the specification, with all seeds in one cell."""
    groups: dict[tuple[str, str], list[Figure]] = {}
    for one in collected:
        groups.setdefault((one.framework, one.what), []).append(one)
    lines = []
    for (framework, what), group in groups.items():
        correct = ", ".join(f"{f.measured:,} of {f.of:,}" for f in group)
        controls = ", ".join(f"{f.control:,}" for f in group)
        control = f"{controls} {group[0].control_is}" if group[0].control_is else ""
        lines.append([framework, what, correct, control, group[0].spec])
    header = ("framework", "what", "read", "control", "specification")
    return TextTable("Facts that one party reads, by order of the rows.", header, lines)


def run(options: Namespace) -> Iterator[TextTable]:
    """Run everything, write each figure to the CSV file at once, and yield the table."""
    collected = []
    with open(options.out, "w", newline="", buffering=1) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f.name for f in fields(Figure)])
        for one in figures(options.seeds, options.data_dir):
            writer.writerow(astuple(one))
            collected.append(one)
    yield table(collected)


STUDIES = {
    "captures": Study(
        "Facts that one party reads from captured messages of other frameworks.",
        run,
        {
            "--out": {"default": "captures.csv", "help": "file for all figures"},
            "--seeds": {"type": int, "default": 2, "help": "number of orders of the rows"},
        },
    )
}
