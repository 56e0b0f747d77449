"""`python -m fedtrees.benchmarks.papers.timberstrike_late --data-dir FOLDER`: counts in the cycle.

A client that is not first in the cycle grows its first tree on others' trees. Which of its leaves
have their class counts certain, which are guessed rightly, and how many of the certain ones are
wrong. Nothing was published to compare with: the blind baseline is own rows, scaled.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.clients.victims import victims_of
from fedtrees.benchmarks.papers.study import markdown, options_of, percent, trained
from fedtrees.core.specs import Spec
from fedtrees.metrics.leaf_counts import blind_leaf_counts, true_leaf_counts
from fedtrees.protocols.views import view_of

SEEDS = (0, 1, 2)
CLIENTS = 3
SIZES = (1, 10, 20, 50, 100, 1000)  # rows of a leaf, from
TURNS = {
    "second": ("client-1", "client-2"),
    "third": ("client-2", "client-1"),
}  # victim, honest-but-curious
_SHARES = ("certain", "right", "blind")  # of the leaves, as `Late` has them
_BY_DEPTH = ("table", "client", "depth", "leaves", *_SHARES, "certain and wrong", "CPU s")
_BY_SIZE = ("table", "client", "rows in the leaf", "leaves", *_SHARES)


@dataclass(frozen=True, eq=False)
class Late:
    """Leaves of one client's first tree, shape (J,) each, and CPU seconds for all.

    `certain, right`: Whether one pair of counts alone is possible, and whether the pair returned is
    the true one. `blind`: Whether the honest-but-curious client's own counts, scaled and rounded,
    are the true pair.
    """

    rows: NDArray[np.int64]
    certain: NDArray[np.bool_]
    right: NDArray[np.bool_]
    blind: NDArray[np.bool_]
    seconds: float


def counted(data: str, depth: int, seed: int, data_dir: str | None) -> dict[str, Late]:
    """Return what another client finds out of the second and of the third client of the cycle."""
    protocol = Spec("flower-cyclic", {"trees": 3, "max_depth": depth})
    run, federation, _ = trained(data, protocol, CLIENTS, seed, data_dir)
    out = {}
    for turn, (name, adversaries) in TURNS.items():
        begin = time.process_time()
        victims = victims_of(view_of(run, (adversaries,), federation.local_data))
        seconds = time.process_time() - begin
        victim = next(v for v in victims if v.owner == name)
        assert victim.late is not None
        late, t = victim.late, victim.blocks[0].first
        held, own = (federation.local_data[client].table for client in (name, adversaries))
        leaves = run.model.trees[t].leaves
        nodes, own_nodes = (run.model.apply(rows.X)[:, t] for rows in (held, own))
        truth = true_leaf_counts(t, nodes, held.y, leaves)
        guess = blind_leaf_counts(true_leaf_counts(t, own_nodes, own.y, leaves), len(held))
        rows = truth.counts.sum(axis=1)
        right = (late.n == rows) & (late.n1 == truth.counts[:, 1])
        blind = (guess.counts == truth.counts).all(axis=1)
        out[turn] = Late(rows, late.certain, right, blind, seconds)
    return out


def by_depth(found: dict[tuple[str, str, int], list[Late]]) -> Iterator[list[str]]:
    """Yield one line per table, client and depth: over seeds."""
    for (data, turn, depth), late in found.items():
        wrong = sum(int((x.certain & ~x.right).sum()) for x in late)
        yield [
            data, turn, str(depth), str(sum(len(x.rows) for x in late)),
            *(percent([getattr(x, name).mean() for x in late], digits=0) for name in _SHARES),
            str(wrong), f"{np.mean([x.seconds for x in late]):.1f}",
        ]  # fmt: skip


def by_size(found: dict[tuple[str, str, int], list[Late]]) -> Iterator[list[str]]:
    """Yield one line per table, client and leaf size: all depths and seeds pooled."""
    for data, turn in dict.fromkeys(key[:2] for key in found):
        pooled = [x for key, late in found.items() if key[:2] == (data, turn) for x in late]
        rows, *shares = (
            np.concatenate([getattr(x, name) for x in pooled]) for name in ("rows", *_SHARES)
        )
        for low, high in zip(SIZES, (*SIZES[1:], None), strict=True):
            here = (rows >= low) & (rows < (high or np.inf))
            if here.any():
                size = f"{low} to {high - 1}" if high else f"{low} or more"
                percents = (percent([x[here].mean()], digits=0) for x in shares)
                yield [data, turn, size, str(here.sum()), *percents]


def main() -> None:
    """Run the study as a command and print its tables."""
    options = options_of("timberstrike_late", "--tables", "--depths")
    found: dict[tuple[str, str, int], list[Late]] = {}
    for data, depth, seed in product(options.tables, options.depths, SEEDS):
        for turn, late in counted(data, depth, seed, options.data_dir).items():
            found.setdefault((data, turn, depth), []).append(late)
    found = dict(sorted(found.items(), key=lambda item: item[0]))
    print(
        f"Leaves of first trees in the cycle, percent:\n\n{markdown(_BY_DEPTH, [*by_depth(found)])}"
    )
    print(f"\nBy size, all depths:\n\n{markdown(_BY_SIZE, [*by_size(found)])}")


if __name__ == "__main__":
    main()
