"""Measure how many leaf counts of a first tree follow from sums of one, two and three clients."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.counts.count_bounds import CountBounds
from fedtrees.attacks.counts.count_estimate import likely_counts
from fedtrees.attacks.counts.interval_counts import FirstTreeCounts, first_trees
from fedtrees.attacks.counts.sum_bounds import members
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.benchmarks.papers.counts_frontier import CUTS, Line, federate
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import Cuts, bin_rows

#: Number of clients in a sum, without the clients of the adversary, by its name.
SUMS = {"one client": 1, "a client of its sum": 2, "the secure sum": 3}


@dataclass(frozen=True)
class Read:
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


def read(data: str, line: Line, seed: int, data_dir: str | None) -> list[Read]:
    """Infer the counts of a first tree from sums of one, two and three clients.

    The server without a secure sum sees the sums of each client (the result is a mean over
    clients). A client of `nvflare-hist` sees the joint sums of the remaining clients. The server
    under a secure sum sees the sums of all clients. The truth are the rows that the training sent
    to a leaf, without random rows that clients add.

    Parameters
    ----------
    data : str
        Data set.
    line : Line
        Defense and parameters.
    seed : int
        Seed of the run.
    data_dir : str or None
        Folder of the data sets.

    Returns
    -------
    shares : list of Read
        In the order of `SUMS`.
    """
    protocol = Spec("nvflare-hist", {"trees": 1, "max_depth": 4, **dict(line.settings)})
    shares = []
    for parts in ("", "+secure-sum"):
        defenses = f"{CUTS}+{line.defense}{parts}"
        protocol_object, guard, federation, local_data = federate(
            data, protocol, defenses, line, seed, data_dir
        )
        run = train(
            protocol_object,
            local_data,
            federation.schema,
            defense=guard,
            seed=seed,
            noise_from="seed",
        )
        for adversary in ("server",) if parts else ("server", "client-0"):
            view = view_of(run, (adversary,), local_data)
            evidence = read_boosting(view)
            trees = None if evidence is None else first_trees(view, evidence)
            if evidence is None or evidence.observed.cuts is None or not trees:
                shares.append(Read(0.0, 0.0, 0))
                continue
            tables = {
                name: (federation.local_data[name].table, local_data[name].table)
                for name in local_data
                if name != adversary
            }
            shares.append(_mean_shares(trees[0], tables, evidence.observed.cuts))
    return shares


def _mean_shares(tree: FirstTreeCounts, tables: dict[str, tuple[Table, Table]], cuts: Cuts) -> Read:
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
    return Read(float(certain), float(likely), round(float(wrong)))


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
