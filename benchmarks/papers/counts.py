"""Measure which defenses hide class counts, and at which cost.

``python -m fedtrees.benchmarks.papers counts --data-dir FOLDER`` prints two tables and stores them
with every measurement. The first contains the leaves of the first tree whose counts are certain,
and whose most probable counts are right, by rounding step and number of clients in a sum. The
second contains the AUC that histogram defenses cost, and the leaves and rows that an attack still
recovers if it ignores or uses bins.

`infer_leaf_counts` infers the counts of a first tree from sums of one, two and three clients.
`measure_cost` trains a model with a defense and lets the server attack it.
"""

import csv
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.count_bounds import CountBounds
from fedtrees.attacks.counts.count_estimate import likely_counts
from fedtrees.attacks.counts.interval_counts import FirstTreeCounts, first_trees
from fedtrees.attacks.counts.sum_bounds import members
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.benchmarks.papers.study import Study, train_federation
from fedtrees.benchmarks.papers.tables import markdown
from fedtrees.core.claims import Records
from fedtrees.core.local_data import LocalData, over_clients
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema, Table
from fedtrees.core.specs import Spec, parse_grid
from fedtrees.experiments.evaluate import score_guess
from fedtrees.experiments.federation import Federation
from fedtrees.metrics.metric import Case
from fedtrees.metrics.records import score_records
from fedtrees.metrics.utility import utility_scores
from fedtrees.metrics.victims_rows import RecordMetric
from fedtrees.protocols.training import Training
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import Cuts, bin_rows

CLIENTS, CUTS = 3, "dp-grid-cuts[epsilon=1.0]"
#: The attack with bins, and the same attack without them.
READ, IGNORED = "timberstrike", "timberstrike[max_level=statistics]"
#: Number of clients in a sum, without the clients of the adversary, by its name.
SUMS = {"one client": 1, "a client of its sum": 2, "the secure sum": 3}


@dataclass(frozen=True)
class DefenseSetting:
    """One defense of the study, and how its model is trained.

    Attributes
    ----------
    defense : str
        Defense in addition to `CUTS`.
    settings : tuple of tuple
        Parameters of the protocol.
    random_rows : int
        Number of random rows that every client adds.
    protocol : str
        Another protocol, for models without a first tree to read.
    """

    defense: str
    settings: tuple[tuple[str, float], ...] = ()
    random_rows: int = 0
    protocol: str = ""

    @property
    def name(self) -> str:
        """Name in tables."""
        if self.protocol:
            return f"`{self.protocol}`"
        more = [f"{k}={v}" for k, v in self.settings]
        rows = [f"{self.random_rows} random rows a client"] if self.random_rows else []
        guard = [f"`{self.defense}`"] if self.defense != "none" or not rows else []
        return ", ".join([*guard, *more, *rows])


def train_setting(
    data: str, protocol: Spec, defense: str, line: DefenseSetting, seed: int, data_dir: str | None
) -> tuple[Training, Federation, Mapping[str, LocalData]]:
    """Train a protocol. Return the training, the federation, and the training data of clients.

    Parameters
    ----------
    data : str
        Data set.
    protocol : Spec
        Protocol with its parameters.
    defense : str
        Defenses, joined by ``+``.
    line : DefenseSetting
        Provides the number of random rows.
    seed : int
        Seed of the partition and of the training.
    data_dir : str or None
        Folder of the data sets.
    """

    def with_random_rows(federation: Federation) -> Mapping[str, LocalData]:
        if not line.random_rows:
            return federation.local_data
        rng = np.random.default_rng(seed)
        tables = (h.table for h in federation.local_data.values())
        return over_clients(
            [add_random_rows(t, federation.schema, line.random_rows, rng) for t in tables]
        )

    parts = "+".join(p for p in defense.split("+") if p != "none")
    run, federation, _ = train_federation(
        data, protocol, CLIENTS, seed, data_dir, defense=parts, local_data=with_random_rows
    )
    return run, federation, with_random_rows(federation)


def add_random_rows(table: Table, schema: Schema, rows: int, rng: np.random.Generator) -> Table:
    """Add random rows to a client's table.

    Values are uniform in the range of their column, and labels are uniform.

    Parameters
    ----------
    table : Table
        Rows of the client.
    schema : Schema
        Marks categorical columns.
    rows : int
        Number of random rows.
    rng : numpy.random.Generator
        Randomness of the rows.
    """
    low, high = np.nanmin(table.X, axis=0), np.nanmax(table.X, axis=0)
    X = rng.uniform(low, high + schema.categorical, (rows, len(low)))
    X = np.where(schema.categorical, np.minimum(np.floor(X), high), X)
    return Table.concat([table, Table(X.astype(np.float32), rng.integers(0, 2, rows))])


def measure_cost(
    data: str, line: DefenseSetting, seed: int, data_dir: str | None, *, rows: bool, **settings: int
) -> dict[str, float]:
    """Train ten trees under a secure sum, and optionally let the server attack.

    Parameters
    ----------
    data : str
        Data set.
    line : DefenseSetting
        Defense and parameters.
    seed : int
        Seed of the run.
    data_dir : str or None
        Folder of the data sets.
    rows : bool
        Whether to run the attack on rows.
    **settings : int
        Further parameters of the protocol.

    Returns
    -------
    cost : dict of str to float
        ``auc`` on test rows. With `rows`, also the reconstruction accuracy of the attack with bins
        (``read``), without bins (``ignored``) and of the blind baseline (``blind``). If clients add
        random rows, ``among`` is the accuracy if all reconstructed rows count, including those that
        match random rows.
    """
    plain = Spec("fedtree-hist", {"trees": 10, "max_depth": 4, **dict(line.settings), **settings})
    protocol = parse_grid(line.protocol)[0] if line.protocol else plain
    defenses = f"secure-sum+{CUTS}+{line.defense}"
    run, federation, local_data = train_setting(data, protocol, defenses, line, seed, data_dir)
    auc = utility_scores(federation.test.y, run.predict(federation.test.X))["auc"]
    assert auc is not None
    if not rows:
        return {"auc": auc}
    case = federation.case(run.transcript.roles, ("server",), seed, "server", run)
    read, among = _score_attack(run, local_data, case, READ, seed)
    ignored, _ = _score_attack(run, local_data, case, IGNORED, seed)
    cost = {"auc": auc, "read": read, "ignored": ignored, "blind": _blind(case)}
    return cost | {"among": among} if line.random_rows else cost


def _score_attack(
    run: Training, local_data: Mapping[str, LocalData], case: Case, name: str, seed: int
) -> tuple[float, float]:
    """Return two accuracies of an attack by the server.

    The first compares as many rows as are true. The second compares all reconstructed rows.
    """
    attack = register.make("attack", parse_grid(name)[0])
    guess = attack.run(view_of(run, ("server",), local_data), np.random.default_rng(seed))
    scores = {r["metric"]: r["value"] for r in score_guess(attack.name, guess, case, None)}
    table, true = guess.first(Records).table, case.victims_rows
    assert true is not None
    among = score_records(table, true, case.schema, limit=max(len(table), len(true))).ra
    return scores["ra"], among


def _blind(case: Case) -> float:
    """Return the reconstruction accuracy of the blind baseline."""
    metric = RecordMetric()
    truth = metric.truth(case)
    assert truth is not None
    guesses = metric.blind(case, truth).items()
    scored = {name: metric.score(claims, truth) for name, claims in guesses}
    return metric.best_of(scored)["ra"].value


@dataclass(frozen=True)
class InferredCounts:
    """Shares of the leaves of a first tree.

    Attributes
    ----------
    certain : float
        Leaves with certain and correct counts.
    likely : float
        Leaves whose most probable counts are correct.
    wrong : int
        Number of leaves whose certain counts are wrong.
    """

    certain: float
    likely: float
    wrong: int


def infer_leaf_counts(
    data: str, line: DefenseSetting, seed: int, data_dir: str | None
) -> list[InferredCounts]:
    """Infer the counts of a first tree from sums of one, two and three clients.

    The server without a secure sum sees the sums of each client (the result is a mean over
    clients). A client of `nvflare-hist` sees the joint sums of the remaining clients. The server
    under a secure sum sees the sums of all clients. The truth are the rows that the training sent
    to a leaf, without random rows that clients add.

    The arguments are those of `measure_cost`.

    Returns
    -------
    shares : list of InferredCounts
        In the order of `SUMS`.
    """
    protocol = Spec("nvflare-hist", {"trees": 1, "max_depth": 4, **dict(line.settings)})
    shares = []
    for parts in ("", "+secure-sum"):
        defenses = f"{CUTS}+{line.defense}{parts}"
        run, federation, local_data = train_setting(data, protocol, defenses, line, seed, data_dir)
        for adversary in ("server",) if parts else ("server", "client-0"):
            view = view_of(run, (adversary,), local_data)
            evidence = read_boosting(view)
            trees = None if evidence is None else first_trees(view, evidence)
            if evidence is None or evidence.observed.cuts is None or not trees:
                shares.append(InferredCounts(0.0, 0.0, 0))
                continue
            tables = {
                name: (federation.local_data[name].table, local_data[name].table)
                for name in local_data
                if name != adversary
            }
            shares.append(_mean_shares(trees[0], tables, evidence.observed.cuts))
    return shares


def _mean_shares(
    tree: FirstTreeCounts, tables: dict[str, tuple[Table, Table]], cuts: Cuts
) -> InferredCounts:
    """Return the mean shares over the sources of sums."""
    parts = []
    for source in tree.sources:
        names = [source.name] if source.name in tables else list(tables)
        real, used = (
            _true(tree, cuts, Table.concat(list(rows)))
            for rows in zip(*(tables[name] for name in names), strict=True)
        )
        guess = likely_counts(source.counted, tree.tree, source.sums, tree.row)
        parts.append(_against(tree, source.counted, guess, real, used))
    certain, likely, wrong = np.mean(parts, axis=0) * [1, 1, len(parts)]
    return InferredCounts(float(certain), float(likely), round(float(wrong)))


def _against(
    tree: FirstTreeCounts,
    counted: CountBounds,
    guess: NDArray[np.int64],
    real: NDArray[np.int64],
    used: NDArray[np.int64],
) -> tuple[float, float, int]:
    """Compare the counts of one source with the real rows and with the rows in training."""
    leaves = tree.tree.leaves
    lo, hi = (end[leaves] for end in counted.nodes)
    is_certain = (lo == hi).all(axis=1)
    wrong = is_certain & (lo != used[leaves]).any(axis=1)
    certain = is_certain & (lo == real[leaves]).all(axis=1)
    right = (guess[leaves] == real[leaves]).all(axis=1)
    return float(certain.mean()), float(right.mean()), int(wrong.sum())


def _true(tree: FirstTreeCounts, cuts: Cuts, rows: Table) -> NDArray[np.int64]:
    """Count the rows of either class that reached each node, int64 (n_nodes, 2)."""
    counts = np.zeros((len(tree.tree), 2), dtype=np.int64)
    bins = bin_rows(rows.X, cuts).codes.astype(np.int64)
    for node, rows_of_node in members(tree.tree, cuts, bins):
        counts[node] = np.bincount(rows.y[rows_of_node], minlength=2)
    return counts


#: German Credit is not bundled. A sample of Adult has the same size, a similar mixture (8 of 14
#: columns are categorical) and a similar imbalance of labels. In contrast to German Credit, it has
#: missing values.
TABLES = ("breast-cancer", "pima", "adult[rows=1000]")
STEPS = tuple(
    DefenseSetting(f"hist-rounding[step={s}]") for s in (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
)
UNROUNDED, PADDED = DefenseSetting("none"), DefenseSetting("none", random_rows=10)
FRONTIER = (
    UNROUNDED,
    *(STEPS[k] for k in (1, 3, 4, 6)),
    *(DefenseSetting(f"hist-rounding[step={s},random=true]") for s in (0.3, 0.5)),
    *(DefenseSetting(f"laplace-hist[epsilon={e}]") for e in (16.0, 64.0)),
    DefenseSetting("min-bin[k=2]"),
    PADDED,
    DefenseSetting("hist-rounding[step=0.1]", (("base_score", 0.02),)),
    DefenseSetting("none", protocol="dp-gbdt[epsilon=4.0,trees=50,noise=distributed]"),
)


BySeed = dict[int, float]
Of = Callable[..., BySeed]  # returns the values of a measure, of a line or of another line


@dataclass(frozen=True)
class Measurement:
    """One measurement of a table, a defense and a seed."""

    data: str
    defense: str
    seed: int
    measure: str
    value: float


def measure_lines(
    data: str, lines: Iterable[DefenseSetting], seeds: int, row_seeds: int, data_dir: str | None
) -> Iterator[Measurement]:
    """Yield the measurements of some defenses.

    Parameters
    ----------
    data : str
        Data set.
    lines : iterable of DefenseSetting
        Defenses.
    seeds : int
        Number of seeds.
    row_seeds : int
        Number of seeds on which the attack on rows is run.
    data_dir : str or None
        Folder of the data sets.
    """
    for line, seed in product(lines, range(seeds)):
        print(f"{data}, {line.name}, seed {seed}", file=sys.stderr, flush=True)
        values: dict[str, float] = {}
        # Counts are inferred from the first tree of the default protocol only.
        if not line.protocol and line != UNROUNDED:
            parts = infer_leaf_counts(data, line, seed, data_dir)
            for n, part in zip(SUMS.values(), parts, strict=True):
                values |= {f"certain, {n}": part.certain, f"likely, {n}": part.likely}
            values["wrong"] = sum(part.wrong for part in parts)
        if line in FRONTIER:
            values |= measure_cost(data, line, seed, data_dir, rows=seed < row_seeds)
        for measure, value in values.items():
            yield Measurement(data, line.name, seed, measure, value)


def by_seed(measurements: Iterable[Measurement]) -> dict[tuple[str, str, str], BySeed]:
    """Group measurements by table, defense and measure."""
    values: dict[tuple[str, str, str], BySeed] = {}
    for f in measurements:
        values.setdefault((f.data, f.defense, f.measure), {})[f.seed] = f.value
    return values


#: Columns of the second table: the name, and a function that formats a cell.
COLUMNS: dict[str, Callable[[Of], str]] = {
    "AUC": lambda of: _change(of("auc"), of("auc", UNROUNDED)),
    "leaves": lambda of: f"{_mean(of('likely, 3'))} / {_mean(of('likely, 1'))}",
    "RA": lambda of: f"{_percent(of('ignored'))} / {_percent(of('read'))}",
}


def text_of(measurements: Sequence[Measurement]) -> str:
    """Format the tables as Markdown."""
    values = by_seed(measurements)
    tables = list(dict.fromkeys(f.data for f in measurements))

    def of(data: str, line: DefenseSetting) -> Of:
        return lambda measure, other=line: values.get((data, other.name, measure), {})

    steps = [
        [line.name, *(c for data in tables for c in _leaves(of(data, line)))] for line in STEPS
    ]
    frontier = [
        [line.name, *(write(of(data, line)) for data in tables for write in COLUMNS.values())]
        for line in FRONTIER
    ]
    wrong = sum(sum(v.values()) for (*_, m), v in values.items() if m == "wrong")
    deviations = [stdev(v.values()) for (*_, m), v in values.items() if m == "read" and len(v) > 1]
    parts = (
        f"Leaves of the first tree, certain / likely right; {wrong:.0f} certain are wrong.",
        markdown(("defense", *(f"{d}: {who}" for d in tables for who in SUMS)), steps),
        "AUC against no rounding, ± standard error; leaves right, of the secure sum / of one "
        "client; RA of the secure sum's server in percent, bins ignored / read (standard "
        f"deviations up to {100 * max(deviations, default=0.0):.1f}).",
        markdown(("defense", *(f"{d}: {name}" for d in tables for name in COLUMNS)), frontier),
        *(_describe_baseline(data, of(data, UNROUNDED), of(data, PADDED)) for data in tables),
    )
    return "\n\n".join(parts) + "\n"


def _leaves(of: Of) -> list[str]:
    """Format the certain and the most probable counts of one line."""
    parts = ([of(f"{k}, {n}") for k in ("certain", "likely")] for n in SUMS.values())
    return [" / ".join(map(_mean, part)) for part in parts]


def _describe_baseline(data: str, plain: Of, padded: Of) -> str:
    """Return the sentence about the blind baseline and random rows."""
    return (
        f"{data}: blind RA {_percent(plain('blind'))}; of real rows among all that are read, "
        f"random ones added, {_percent(padded('among'))}."
    )


def _change(seen: BySeed, base: BySeed) -> str:
    """Format the mean difference from a baseline, paired by seed, with its standard error."""
    gains = [value - base[seed] for seed, value in seen.items() if seed in base]
    if not gains:
        return "-"
    error = f" ± {stdev(gains) / len(gains) ** 0.5:.3f}" if len(gains) > 1 else ""
    return f"{mean(gains):+.3f}{error}"


def _mean(seen: BySeed) -> str:
    return f"{mean(seen.values()):.2f}" if seen else "-"


def _percent(seen: BySeed) -> str:
    return f"{100 * mean(seen.values()):.1f}" if seen else "-"


def store(measurements: Sequence[Measurement], folder: Path) -> None:
    """Write the tables and every measurement."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "counts.md").write_text(text_of(measurements), encoding="utf-8")
    with (folder / "counts.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("table", "defense", "seed", "measure", "value"))
        writer.writerows(
            (f.data, f.defense, f.seed, f.measure, f"{f.value:.6f}") for f in measurements
        )


def run(options: Namespace) -> Iterator[str]:
    """Measure all defenses, store the measurements after each data set and yield the tables."""
    lines = tuple(dict.fromkeys((*STEPS, *FRONTIER)))
    measurements: list[Measurement] = []
    for data in options.tables:
        measurements += measure_lines(
            data, lines, options.seeds, options.row_seeds, options.data_dir
        )
        store(measurements, Path(options.out))
    yield text_of(measurements)


STUDIES = {
    "counts": Study(
        "Class counts that histogram defenses hide, and the AUC that they cost.",
        run,
        {
            "--out": {"default": "runs/counts", "help": "folder of the results"},
            "--tables": {"nargs": "+", "default": TABLES, "help": "data sets"},
            "--seeds": {"type": int, "default": 10, "help": "number of seeds"},
            "--row-seeds": {"type": int, "default": 2, "help": "seeds of the attack on rows"},
        },
    )
}
