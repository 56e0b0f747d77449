"""Measure how well trees of a bagging federation can be attributed to clients.

``python -m fedtrees.benchmarks.papers.timberstrike_chains --data-dir FOLDER`` prints a table.
Clients of a bagging federation see trees in a shuffled order without names. The table contains the
share of trees that are assigned to the chain of the correct client, which is the client whose first
tree started the chain. It is compared with a random assignment. There are no published results to
compare with.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fedtrees.attacks.clients.client_trees import Block, blocks_of
from fedtrees.attacks.clients.linkage import link
from fedtrees.benchmarks.papers.study import markdown, options_of, percent, train_federation
from fedtrees.core.specs import Spec
from fedtrees.protocols.views import view_of

SEEDS = (0, 1, 2)
ROUNDS, DEPTH = 30, 6
CLUES = ("hessian", "sums", "all")
SETTINGS = (
    ("pima", Spec("iid"), (3, 10, 30)),
    ("pima", Spec("quantity-skew", {"alpha": 0.3, "min_size": 50}), (3,)),
    ("stroke", Spec("iid"), (3, 10, 30)),
    ("stroke", Spec("feature-bands", {"feature": "age"}), (3, 10, 30)),
)
_COLUMNS = (
    "table", "partition", "clients", "by lot", "root H (authors' code)", "root H and G (paper)",
    "and thresholds (default)",
)  # fmt: skip


def linked_share(
    data: str, partition: Spec, clients: int, seed: int, data_dir: str | None
) -> dict[str, float]:
    """Return the share of blocks in the correct chain, by the clues that are used.

    Blocks of the first round and trees without a split are not counted. The learning rate is 0.3
    divided by the number of clients, as in Flower's example.

    Parameters
    ----------
    data : str
        Data set.
    partition : Spec
        Partition.
    clients : int
        Number of clients.
    seed : int
        Seed of the training.
    data_dir : str or None
        Folder of the data sets.
    """
    settings = {"trees": ROUNDS, "max_depth": DEPTH, "learning_rate": 0.3 / clients}
    protocol = Spec("flower-bagging", {**settings, "arrival": "shuffled"})
    run, federation, _ = train_federation(
        data, protocol, clients, seed, data_dir, partition=partition
    )
    seen, server_blocks = (
        blocks_of(view_of(run, (name,), federation.local_data))
        for name in (f"client-{clients - 1}", "server")
    )
    assert seen is not None
    assert server_blocks is not None
    # The server knows the sender of every block, which is the ground truth.
    owner = {block.first: block.sender for block in server_blocks.blocks}
    rounds: dict[int, list[Block]] = {}
    for block in seen.blocks:
        if block.sender is None:
            rounds.setdefault(block.round, []).append(block)
    unknown = list(rounds.values())
    return {
        "by lot": 1 / len(unknown[0]),
        **{clues: _right(unknown, link(unknown, clues), owner) for clues in CLUES},
    }


def _right(
    rounds: Sequence[Sequence[Block]], chains: Sequence[Sequence[int]], owner: dict[int, str | None]
) -> float:
    """Return the share of blocks whose chain was started by the same client."""
    starters = [owner[block.first] for block in rounds[0]]
    hits = [
        starters[chain] == owner[block.first]
        for blocks, numbers in zip(rounds[1:], chains[1:], strict=True)
        for block, chain in zip(blocks, numbers, strict=True)
        if len(block.trees[0]) > 1
    ]
    return float(np.mean(hits))


def lines(data_dir: str | None) -> Iterator[list[str]]:
    """Yield one line per table, partition and number of clients: means and deviations."""
    for data, partition, numbers in SETTINGS:
        for clients in numbers:
            results = [linked_share(data, partition, clients, seed, data_dir) for seed in SEEDS]
            shares = (percent([f[c] for f in results], digits=0) for c in ("by lot", *CLUES))
            yield [data, f"`{partition}`", str(clients), *shares]


def main() -> None:
    """Run all settings and print the table."""
    options = options_of("timberstrike_chains")
    title = f"Percent of blocks after the first round, {ROUNDS} rounds, depth {DEPTH}; mean ± "
    print(f"{title}standard deviation over seeds.\n")
    print(markdown(_COLUMNS, list(lines(options.data_dir))))


if __name__ == "__main__":
    main()
