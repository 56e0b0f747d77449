"""Measure the class counts that follow from the first trees of later clients in a cycle.

``python -m fedtrees.benchmarks.papers.timberstrike_late --data-dir FOLDER`` prints the tables. A
client that is not first in the cycle grows its first tree on the trees of previous clients. The
tables contain the share of its leaves with certain class counts, the share with correct ones, and
the number of certain counts that are wrong. There are no published results to compare with. The
blind baseline are the scaled counts of the adversary's rows.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.benchmarks.papers.study import markdown, options_of, percent, train_federation
from fedtrees.core.specs import Spec
from fedtrees.metrics.leaf_counts import blind_leaf_counts, true_leaf_counts
from fedtrees.protocols.views import view_of

SEEDS = (0, 1, 2)
CLIENTS = 3
SIZES = (1, 10, 20, 50, 100, 1000)  # smallest number of rows of each class of leaves
TURNS = {
    "second": ("client-1", "client-2"),
    "third": ("client-2", "client-1"),
}  # victim and honest-but-curious client
_SHARES = ("certain", "right", "blind")  # attributes of `Late`
_BY_DEPTH = ("table", "client", "depth", "leaves", *_SHARES, "certain and wrong", "CPU s")
_BY_SIZE = ("table", "client", "rows in the leaf", "leaves", *_SHARES)


@dataclass(frozen=True, eq=False)
class Late:
    """Leaves of one client's first tree.

    Attributes
    ----------
    rows : int64 array, shape (J,)
        Number of rows.
    certain : bool array, shape (J,)
        Whether a single pair of class counts is possible.
    right : bool array, shape (J,)
        Whether the returned counts are correct.
    blind : bool array, shape (J,)
        Whether the scaled and rounded counts of the adversary's rows are correct.
    seconds : float
        CPU seconds for all leaves.
    """

    rows: NDArray[np.int64]
    certain: NDArray[np.bool_]
    right: NDArray[np.bool_]
    blind: NDArray[np.bool_]
    seconds: float


def count_late_leaves(data: str, depth: int, seed: int, data_dir: str | None) -> dict[str, Late]:
    """Return the inferred counts of the second and of the third client of the cycle.

    Parameters
    ----------
    data : str
        Data set.
    depth : int
        Maximum depth.
    seed : int
        Seed of the training.
    data_dir : str or None
        Folder of the data sets.
    """
    protocol = Spec("flower-cyclic", {"trees": 3, "max_depth": depth})
    run, federation, _ = train_federation(data, protocol, CLIENTS, seed, data_dir)
    out = {}
    for turn, (name, adversaries) in TURNS.items():
        begin = time.process_time()
        victims = observe_clients(view_of(run, (adversaries,), federation.local_data))
        seconds = time.process_time() - begin
        victim = next(v for v in victims if v.owner == name)
        assert victim.late is not None
        late, t = victim.late, victim.blocks[0].first
        victim_rows, adversary_rows = (
            federation.local_data[client].table for client in (name, adversaries)
        )
        leaves = run.model.trees[t].leaves
        nodes, own_nodes = (run.model.apply(rows.X)[:, t] for rows in (victim_rows, adversary_rows))
        # Compare with the true counts of the victim, and with scaled counts of the adversary.
        truth = true_leaf_counts(t, nodes, victim_rows.y, leaves)
        guess = blind_leaf_counts(
            true_leaf_counts(t, own_nodes, adversary_rows.y, leaves), len(victim_rows)
        )
        rows = truth.counts.sum(axis=1)
        right = (late.n == rows) & (late.n1 == truth.counts[:, 1])
        blind = (guess.counts == truth.counts).all(axis=1)
        out[turn] = Late(rows, late.certain, right, blind, seconds)
    return out


def by_depth(cells: dict[tuple[str, str, int], list[Late]]) -> Iterator[list[str]]:
    """Yield one line per table, client and depth, over seeds."""
    for (data, turn, depth), late in cells.items():
        wrong = sum(int((x.certain & ~x.right).sum()) for x in late)
        yield [
            data, turn, str(depth), str(sum(len(x.rows) for x in late)),
            *(percent([getattr(x, name).mean() for x in late], digits=0) for name in _SHARES),
            str(wrong), f"{np.mean([x.seconds for x in late]):.1f}",
        ]  # fmt: skip


def by_size(cells: dict[tuple[str, str, int], list[Late]]) -> Iterator[list[str]]:
    """Yield one line per table, client and leaf size, over all depths and seeds."""
    for data, turn in dict.fromkeys(key[:2] for key in cells):
        pooled = [x for key, late in cells.items() if key[:2] == (data, turn) for x in late]
        rows, *shares = (
            np.concatenate([getattr(x, name) for x in pooled]) for name in ("rows", *_SHARES)
        )
        for low, high in zip(SIZES, (*SIZES[1:], None), strict=True):
            selected = (rows >= low) & (rows < (high or np.inf))
            if selected.any():
                size = f"{low} to {high - 1}" if high else f"{low} or more"
                percents = (percent([x[selected].mean()], digits=0) for x in shares)
                yield [data, turn, size, str(selected.sum()), *percents]


def main() -> None:
    """Run the study and print its tables."""
    options = options_of("timberstrike_late", "--tables", "--depths")
    cells: dict[tuple[str, str, int], list[Late]] = {}
    for data, depth, seed in product(options.tables, options.depths, SEEDS):
        for turn, late in count_late_leaves(data, depth, seed, options.data_dir).items():
            cells.setdefault((data, turn, depth), []).append(late)
    cells = dict(sorted(cells.items(), key=lambda item: item[0]))
    print(
        f"Leaves of first trees in the cycle, percent:\n\n{markdown(_BY_DEPTH, [*by_depth(cells)])}"
    )
    print(f"\nBy size, all depths:\n\n{markdown(_BY_SIZE, [*by_size(cells)])}")


if __name__ == "__main__":
    main()
