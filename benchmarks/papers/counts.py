"""`python -m fedtrees.benchmarks.papers.counts --data-dir FOLDER`: leaves of the first tree read.

How many leaves of the first tree have certain, and how many likely counts that are right, by the
step of rounding and the number of clients in a sum, and under other defenses of histograms. Truth
is what training sent to a leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence import evidence_of
from fedtrees.attacks.evidence.readback.forms import Counted
from fedtrees.attacks.evidence.readback.likely import likely_counts
from fedtrees.attacks.evidence.readback.read import FirstTree, first_trees
from fedtrees.attacks.evidence.readback.sources import members
from fedtrees.bench.federation import Federation
from fedtrees.benchmarks.papers.study import markdown, options_of, trained
from fedtrees.core.schema import Table
from fedtrees.core.specs import parse_grid
from fedtrees.protocols.views import view_of
from fedtrees.trees.binning import Cuts, bin_rows

CLIENTS, CUTS = 3, "dp-grid-cuts[epsilon=1.0]"
STEPS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
DEFENSES = (
    *(f"hist-rounding[step={s}]" for s in (0.1, 0.3, 0.5, 1.0)),
    *(f"hist-rounding[step={s},random=true]" for s in (0.3, 0.5)),
    *(f"laplace-hist[epsilon={e}]" for e in (16.0, 64.0)),
    "min-bin[k=2]",
)
SUMS = {"one client": 1, "a client of its sum": 2, "the secure sum": 3}


@dataclass(frozen=True)
class Read:
    """Shares of the leaves of a first tree: with certain counts, and with likely ones right."""

    certain: float
    likely: float
    wrong: int  # certain counts that are wrong


def read(data: str, defense: str, seed: int, data_dir: str | None, score: str = "") -> list[Read]:
    """Read one first tree from sums of one, two and three clients.

    The server without a secure sum reads each client's sums (means over clients), a client of
    `nvflare-hist` the others' together, and the server under a secure sum all of them.
    """
    protocol = parse_grid(f"nvflare-hist[trees=1,max_depth=4{score}]")[0]
    found = []
    for parts in ("", "+secure-sum"):
        given = f"{CUTS}+{defense}{parts}"
        run, federation, _ = trained(data, protocol, CLIENTS, seed, data_dir, defense=given)
        for who in ("server",) if parts else ("server", "client-0"):
            view = view_of(run, (who,), federation.holdings)
            evidence = evidence_of(view)
            trees = None if evidence is None else first_trees(view, evidence)
            if evidence is None or evidence.cuts is None or not trees:
                found.append(Read(0.0, 0.0, 0))
                continue
            others = [name for name in federation.holdings if name != who]
            found.append(_scored(trees[0], federation, evidence.cuts, others))
    return found


def _scored(tree: FirstTree, federation: Federation, cuts: Cuts, others: Sequence[str]) -> Read:
    parts = []
    for source in tree.sources:
        names = [source.name] if source.name in federation.holdings else others
        rows = Table.concat([federation.holdings[name].table for name in names])
        guess = likely_counts(source.counted, tree.tree, source.sums, tree.row)
        parts.append(_against(tree, source.counted, guess, _true(tree, cuts, rows)))
    certain, likely, wrong = np.mean(parts, axis=0) * [1, 1, len(parts)]
    return Read(float(certain), float(likely), round(float(wrong)))


def _against(
    tree: FirstTree, counted: Counted, guess: NDArray[np.int64], true: NDArray[np.int64]
) -> tuple[float, float, int]:
    leaves = tree.tree.leaves
    lo, hi = (end[leaves] for end in counted.nodes)
    known, right = (lo == hi).all(axis=1), (guess[leaves] == true[leaves]).all(axis=1)
    wrong = known & (lo != true[leaves]).any(axis=1)
    return float(known.mean()), float(right.mean()), int(wrong.sum())


def _true(tree: FirstTree, cuts: Cuts, rows: Table) -> NDArray[np.int64]:
    """Count the rows of either class that training sent to every node, int64 (n_nodes, 2)."""
    counts = np.zeros((len(tree.tree), 2), dtype=np.int64)
    bins = bin_rows(rows.X, cuts).codes.astype(np.int64)
    for node, mine in members(tree.tree, cuts, bins):
        counts[node] = np.bincount(rows.y[mine], minlength=2)
    return counts


def _mean(reads: Iterable[list[Read]]) -> tuple[list[str], int]:
    """Write certain and likely shares per number of clients, and count what is wrong."""
    cells, wrong = [], 0
    for column in zip(*reads, strict=True):
        certain, likely = (np.array([getattr(r, k) for r in column]) for k in ("certain", "likely"))
        cells.append(f"{certain.mean():.2f} / {likely.mean():.2f} ± {likely.std():.2f}")
        wrong += sum(r.wrong for r in column)
    return cells, wrong


def main() -> None:
    """Run the study and print its tables."""
    options = options_of("counts", "--tables", "--fast")
    seeds = range(2 if options.fast else 10)
    tables = ["breast-cancer"] if options.fast else ["breast-cancer", *options.tables]
    steps = [(f"hist-rounding[step={s}]", "") for s in STEPS]
    others = [(d, "") for d in DEFENSES[4:]] + [("hist-rounding[step=0.1]", ",base_score=0.02")]
    lines, wrong = [], 0
    for data, (defense, score) in product(tables, [*steps, *others]):
        reads = [read(data, defense, seed, options.data_dir, score) for seed in seeds]
        cells, more = _mean(reads)
        lines.append([data, f"`{defense}`{score.replace(',', ', ')}", *cells])
        wrong += more
        print("|".join(lines[-1]), flush=True)
    title = (
        f"Leaves certain / likely right (± over {len(seeds)} seeds); wrong certain ones: {wrong}"
    )
    print(f"{title}\n\n{markdown(('table', 'defense', *SUMS), lines)}\n")


if __name__ == "__main__":
    main()
