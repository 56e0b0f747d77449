"""Leaves of a first tree whose counts are read back from sums of one, two and three clients."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import evidence_of
from fedtrees.attacks.evidence.readback.forms import Counted
from fedtrees.attacks.evidence.readback.likely import likely_counts
from fedtrees.attacks.evidence.readback.read import FirstTree, first_trees
from fedtrees.attacks.evidence.readback.sources import members
from fedtrees.benchmarks.papers.counts_frontier import CUTS, Line, federated
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.protocols.training import train
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import Cuts, bin_rows

#: Whose sums: of how many clients without the adversary's own.
SUMS = {"one client": 1, "a client of its sum": 2, "the secure sum": 3}


@dataclass(frozen=True)
class Read:
    """Shares of the leaves of a first tree: with certain counts, and with likely ones right."""

    certain: float
    likely: float
    wrong: int  # certain counts that are wrong


def read(data: str, line: Line, seed: int, data_dir: str | None) -> list[Read]:
    """Read one first tree from sums of one, two and three clients, in the order of `SUMS`.

    The server without a secure sum reads each client's sums (means over clients), a client of
    `nvflare-hist` the others' together, and the server under a secure sum all of them. Truth is
    what training sent to a leaf, without the random rows that clients add.
    """
    protocol = Spec("nvflare-hist", {"trees": 1, "max_depth": 4, **dict(line.settings)})
    found = []
    for parts in ("", "+secure-sum"):
        given = f"{CUTS}+{line.defense}{parts}"
        made, guard, federation, held = federated(data, protocol, given, line, seed, data_dir)
        run = train(made, held, federation.schema, defense=guard, seed=seed, noise_from="seed")
        for who in ("server",) if parts else ("server", "client-0"):
            view = view_of(run, (who,), held)
            evidence = evidence_of(view)
            trees = None if evidence is None else first_trees(view, evidence)
            if evidence is None or evidence.cuts is None or not trees:
                found.append(Read(0.0, 0.0, 0))
                continue
            tables = {
                name: (federation.local_data[name].table, held[name].table)
                for name in held
                if name != who
            }
            found.append(_scored(trees[0], tables, evidence.cuts))
    return found


def _scored(tree: FirstTree, tables: dict[str, tuple[Table, Table]], cuts: Cuts) -> Read:
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
    tree: FirstTree,
    counted: Counted,
    guess: NDArray[np.int64],
    real: NDArray[np.int64],
    used: NDArray[np.int64],
) -> tuple[float, float, int]:
    leaves = tree.tree.leaves
    lo, hi = (end[leaves] for end in counted.nodes)
    known = (lo == hi).all(axis=1)
    wrong = known & (lo != used[leaves]).any(axis=1)
    certain = known & (lo == real[leaves]).all(axis=1)
    right = (guess[leaves] == real[leaves]).all(axis=1)
    return float(certain.mean()), float(right.mean()), int(wrong.sum())


def _true(tree: FirstTree, cuts: Cuts, rows: Table) -> NDArray[np.int64]:
    """Count the rows of either class that training sent to every node, int64 (n_nodes, 2)."""
    counts = np.zeros((len(tree.tree), 2), dtype=np.int64)
    bins = bin_rows(rows.X, cuts).codes.astype(np.int64)
    for node, mine in members(tree.tree, cuts, bins):
        counts[node] = np.bincount(rows.y[mine], minlength=2)
    return counts
