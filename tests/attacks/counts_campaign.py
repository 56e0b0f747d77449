"""Compare inferred class counts with the truth in random runs of every kind.

``python tests/attacks/counts_campaign.py --runs 1000 --first 0`` draws each run from
its seed and prints the runs in which a bound excludes the truth. ``--runs 1 --first 17`` repeats a
single run.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.interval_counts import FirstTreeCounts, first_trees
from fedtrees.attacks.counts.sum_bounds import members
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import FedtreesError
from fedtrees.core.local_data import over_clients
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.data import catalogue
from fedtrees.defenses.cut_points import GridCuts, PrivateGridCuts
from fedtrees.defenses.laplace import LaplaceHistogram
from fedtrees.defenses.masking import Masking
from fedtrees.defenses.rounding import HistogramRounding
from fedtrees.defenses.secure_sum import SecureSum
from fedtrees.defenses.suppression import MinBin, SplitOnly
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.compatibility import KnownFacts, check_fit
from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist, NVFlareHist
from fedtrees.protocols.training import Training, train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import bin_rows

BUNDLED = ("breast-cancer", "wine", "wine-3", "diabetes")
MOST_ROWS = 300


@dataclass(frozen=True, eq=False)
class Drawn:
    """A random federation with its training and its adversary.

    Attributes
    ----------
    schema : Schema
        Columns and classes.
    shares : list of Table
        Rows of each client.
    protocol : Protocol
        Training protocol.
    defense : Composition
        Defenses.
    principals : tuple of str
        Parties of the adversary.
    seed : int
        Seed of the run.
    """

    schema: Schema
    shares: list[Table]
    protocol: Protocol
    defense: Composition
    principals: tuple[str, ...]
    seed: int


def draw(seed: int, data_dir: str | None = None) -> Drawn:
    """Draw a run of any kind."""
    rng = np.random.default_rng(seed)
    table, schema = _table(rng, data_dir)
    clients = int(rng.integers(1, 11))
    client_of_row = rng.integers(0, clients, len(table))
    if rng.random() < 0.3:  # The shares have random sizes.
        client_of_row = rng.choice(clients, len(table), p=rng.dirichlet(np.full(clients, 0.5)))
    shares = [table.take(np.flatnonzero(client_of_row == k)) for k in range(clients)]
    shares = [s for s in shares if len(s)]
    names = [f"client-{k}" for k in range(len(shares))]
    adversary = _one(rng, ("server",), ("server",), (names[0],), (names[0],), ("server", names[-1]))
    if rng.random() < 0.1:
        adversary = tuple(names[:2])
    return Drawn(schema, shares, _protocol(rng), _defense(rng), adversary, seed)


def _one(rng: np.random.Generator, *choices: Any) -> Any:
    """Return one of the choices at random."""
    return choices[int(rng.integers(len(choices)))]


def _table(rng: np.random.Generator, data_dir: str | None) -> tuple[Table, Schema]:
    """Draw a table: a sample of a bundled data set, or synthetic rows."""
    if rng.random() < 0.5:
        names = BUNDLED + (("pima", "stroke", "obesity") if data_dir else ())
        data = catalogue.load(_one(rng, *names), data_dir)
        table, schema = data.table, data.schema
        selected = rng.permutation(len(table))[: int(rng.integers(30, MOST_ROWS))]
        table = table.take(selected)
    else:
        n, d = int(rng.integers(12, MOST_ROWS)), int(rng.integers(1, 7))
        X = rng.normal(size=(n, d)).astype(np.float32)
        coarse = rng.random(d) < 0.4
        X[:, coarse] = np.round(X[:, coarse])
        k = _one(rng, 2, 2, 2, 3, 5)
        score = X[:, 0] + rng.normal(size=n) * _one(rng, 0.1, 1.0)
        cuts = np.quantile(score, np.sort(rng.random(k - 1)))
        table = Table(X, np.digitize(score, cuts).astype(np.int64))
        features = tuple(Feature(f"x{c}", low=-6.0, high=6.0) for c in range(d))
        schema = Schema(features, "y", tuple(map(str, range(k))))
    X = table.X.copy()
    if rng.random() < 0.3:
        X[rng.random(X.shape) < _one(rng, 0.02, 0.2)] = np.nan
    complete = ~np.isnan(X).any(axis=0) & (rng.random(X.shape[1]) < _one(rng, 0.0, 0.5, 1.0))
    columns = zip(schema.features, complete.tolist(), strict=True)
    schema = replace(schema, features=tuple(replace(f, complete=t) for f, t in columns))
    weight = None
    if rng.random() < 0.05:
        weight = rng.integers(0, 4, len(X)) * _one(rng, 1.0, 0.37)
    return Table(X, table.y, weight), schema


def _protocol(rng: np.random.Generator) -> Protocol:
    """Draw a histogram protocol and its parameters."""
    stopping = rng.random() < 0.1
    binary = _one(rng, 0.5, 0.02, 0.3, 0.9)
    return _one(rng, FedTreeHist, NVFlareHist)(  # type: ignore[no-any-return]
        trees=int(_one(rng, 1, 1, 2)),
        max_depth=int(rng.integers(1, 7)),
        max_bin=int(_one(rng, 2, 4, 8, 16, 32, 64)),
        max_leaves=int(_one(rng, 0, 0, 0, 2, 5)),
        grow_policy=_one(rng, "depthwise", "depthwise", "lossguide"),
        learning_rate=float(_one(rng, 0.05, 0.3, 1.0)),
        reg_lambda=float(_one(rng, 0.0, 1.0, 5.0)),
        reg_alpha=float(_one(rng, 0.0, 0.0, 0.5)),
        gamma=float(_one(rng, 0.0, 0.0, 0.5)),
        min_child_weight=float(_one(rng, 0.0, 1.0, 3.0)),
        subsample=float(_one(rng, 1.0, 1.0, 1.0, 0.8, 0.4)),
        colsample_bytree=float(_one(rng, 1.0, 1.0, 0.5)),
        colsample_bynode=float(_one(rng, 1.0, 1.0, 0.7)),
        base_score=_one(rng, None, None, binary),
        cuts=_one(rng, "sketch", "sketch", "equal-width"),
        enable_categorical=bool(rng.random() < 0.3),
        early_stopping_rounds=int(stopping),
        validation_fraction=0.2,
    )


def _defense(rng: np.random.Generator) -> Composition:
    """Draw a composition of defenses."""
    step = float(np.exp(rng.uniform(np.log(0.02), np.log(3))))
    parts: list[Defense] = []
    if rng.random() < 0.4:
        parts.append(_one(rng, GridCuts(), PrivateGridCuts(1.0), PrivateGridCuts(0.2)))
    # Deterministic rounding is drawn in 65% of the runs, random rounding in 20%, and noise in 5%.
    kind = rng.random()
    if kind < 0.65:
        parts.append(HistogramRounding(step))
    elif kind < 0.85:
        parts.append(HistogramRounding(step, random=True))
    elif kind < 0.9:
        parts.append(LaplaceHistogram(float(_one(rng, 1.0, 16.0)), clip=float(_one(rng, 1, 0.4))))
    if rng.random() < 0.3:
        small = MinBin(int(rng.integers(2, 7)), _one(rng, "client", "client", "server"))
        # Noise must precede suppression, because the privacy claim is refused otherwise.
        noisy = any(isinstance(part, LaplaceHistogram) for part in parts)
        place = int(rng.integers(0, len(parts) + 1))
        parts.insert(len(parts) if noisy else place, small)
    if rng.random() < 0.4:
        lossy = Masking(mode="ideal", dropout=0.1)
        parts.append(_one(rng, SecureSum(), SecureSum(), Masking(mode="ideal"), lossy))
    if rng.random() < 0.1:
        parts.append(SplitOnly())
    return Composition(tuple(parts))


def train_drawn(drawn: Drawn) -> Training | None:
    """Train a run, or return None if its parts are incompatible."""
    try:
        return train(
            drawn.protocol, over_clients(drawn.shares), drawn.schema, defense=drawn.defense,
            seed=drawn.seed, noise_from="seed",
        )  # fmt: skip
    except FedtreesError:
        return None


def true_counts(
    drawn: Drawn, first_tree: FirstTreeCounts, t: int, names: tuple[str, ...], cuts: Any
) -> NDArray[np.int64]:
    """Count the rows of some clients in every cell of a first tree.

    Parameters
    ----------
    drawn : Drawn
        The run.
    first_tree : FirstTree
        The tree.
    t : int
        Number of the tree, which is the class that it separates if there are more than two.
    names : tuple of str
        Clients whose rows are counted.
    cuts : Cuts
        Borders of the bins.

    Returns
    -------
    counts : int64 array, shape (n_nodes, columns + 1, 3)
        Rows outside the class, in the class, and of both, in the columns of `CountBounds`.
    """
    counts = np.zeros((*first_tree.counted.lo.shape[:2], 3), dtype=np.int64)
    start = first_tree.counted.start
    positive_class = 1 if len(drawn.schema.classes) == 2 else t
    for k, share in enumerate(drawn.shares):
        name = f"client-{k}"
        if name not in names:
            continue
        streams = Streams(drawn.seed).child(name)
        # Only rows on which the tree was grown count, without those that subsampling or early
        # stopping leaves out.
        used = drawn.protocol.training_rows(len(share), streams, 0, drawn.defense)
        table = share if used is None else share.take(used)
        bins = bin_rows(table.X, cuts).codes.astype(np.int64)
        for node, rows in members(first_tree.tree, cuts, bins):
            is_positive = (table.y[rows] == positive_class).astype(np.intp)
            np.add.at(counts, (node, -1, is_positive), 1)
            for f in range(cuts.n_features):
                column = start[f] + np.minimum(bins[rows, f], cuts.n_bins[f])
                np.add.at(counts, (node, column, is_positive), 1)
    counts[..., 2] = counts[..., 0] + counts[..., 1]
    return counts


def campaign(first: int, runs: int, data_dir: str | None = None) -> Counter[str]:
    """Run many draws and count events.

    ``wrong`` counts bounds that exclude the truth, ``certain`` counts cells whose counts are
    certain.

    Parameters
    ----------
    first : int
        First seed.
    runs : int
        Number of runs.
    data_dir : str or None
        Folder of the data sets.
    """
    tally: Counter[str] = Counter()
    for seed in range(first, first + runs):
        drawn = draw(seed, data_dir)
        run = train_drawn(drawn)
        tally["runs"] += 1
        if run is None:
            tally["refused"] += 1
            continue
        inferred, n_wrong = _compare_counts(drawn, run, tally)
        tally["open" if not inferred else "read"] += 1
        if n_wrong:
            tally["wrong"] += n_wrong
            print(f"seed {seed}: {n_wrong} bounds are wrong; {drawn.protocol}, {drawn.defense}")
    return tally


def _compare_counts(drawn: Drawn, run: Training, tally: Counter[str]) -> tuple[bool, int]:
    """Return whether counts were inferred, and how many bounds exclude the truth."""
    local_data = over_clients(drawn.shares)
    sealed = KnownFacts(roles=run.transcript.roles)
    if (
        set(local_data) <= set(drawn.principals)
        or not check_fit(None, run.defense, None, drawn.principals, sealed).ok
    ):
        return False, 0
    view = view_of(run, drawn.principals, local_data)
    evidence = read_boosting(view)
    trees = None if evidence is None else first_trees(view, evidence)
    if evidence is None or trees is None:
        return False, 0
    n_wrong = 0
    for t, tree in enumerate(trees):
        sources = [
            (source.counted, (source.name,)) for source in tree.sources if source.name in local_data
        ]
        remaining = tuple(name for name in local_data if name not in drawn.principals)
        for counted, names in (*sources, (tree.counted, remaining)):
            true_cell_counts = true_counts(drawn, tree, t, names, evidence.observed.cuts)
            lo, hi = counted.lo[..., :3], counted.hi[..., :3]
            n_wrong += int(((true_cell_counts < lo) | (true_cell_counts > hi)).any(axis=-1).sum())
            is_certain = (lo == hi).all(axis=-1)
            tally["certain"] += int(is_certain.sum())
            tally["cells"] += is_certain.size
        likely = tree.likely
        lo, hi = tree.leaves
        n_wrong += int(((likely < lo) | (likely > hi)).sum())
        tally["leaves"] += len(likely)
        tally["certain leaves"] += int(tree.certain.sum())
        is_correct = (
            likely
            == true_counts(drawn, tree, t, remaining, evidence.observed.cuts)[
                tree.tree.leaves, -1, :2
            ]
        )
        tally["likely leaves"] += int(is_correct.all(axis=1).sum())
    return True, n_wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python tests/attacks/counts_campaign.py")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--data-dir", default=None)
    options = parser.parse_args()
    for what, number in sorted(campaign(options.first, options.runs, options.data_dir).items()):
        print(f"{what}: {number}")
