"""Measure what clients learn from trees that other clients grow on their local data.

- `timberstrike_recovery`: class counts that follow from the first tree of each client, with all
  statistics, with masked hessians and without statistics.
- `timberstrike_late`: class counts of the first tree of a client that is not first in a cycle. The
  client grows it on the trees of previous clients.
- `timberstrike_chains`: trees of a bagging federation that arrive in a shuffled order without
  names, and are attributed to their client.

There are no published results to compare with. The blind baseline of class counts are the scaled
counts of the adversary's rows. Trees are also attributed at random.
"""

import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.client_trees import Block, blocks_of, link
from fedtrees.attacks.clients.per_client import observe_clients
from fedtrees.benchmarks.papers.study import Options, Study, train_federation
from fedtrees.benchmarks.papers.tables import Table, percent
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.experiments.evaluate import score_guess
from fedtrees.metrics.leaf_counts import blind_leaf_counts, true_leaf_counts
from fedtrees.protocols.views import view_of

SEEDS = (0, 1, 2)
CLIENTS = 3
OPTIONS: Options = {
    "--tables": {"nargs": "+", "default": ["pima", "stroke"], "help": "data sets"},
    "--depths": {"nargs": "+", "type": int, "default": tuple(range(3, 9)), "help": "tree depths"},
}
THREATS = {"client": ("client-2",), "server": ("server",), "public": ("public",)}
#: Number of trees until each client has grown one.
TREES = {"flower-bagging": 1, "flower-cyclic": CLIENTS, "local-ensembles": 1}
DEFENSES = ("none", "mask-sum-hessian", "split-only")

Key = tuple[str, str, str, str]  # table, protocol, threat and defense
# By depth: pairs of exact and blind shares, over seeds.
Scores = dict[tuple[Key, int], list[tuple[float, float]]]


def count_recovered_leaves(
    data: str, protocol: str, defense: str, depth: int, seed: int, data_dir: str | None
) -> Iterator[tuple[str, float, float]]:
    """Yield the threat, the share of leaves with exact class counts, and the blind share.

    Parameters
    ----------
    data : str
        Data set.
    protocol, defense : str
        Protocol and defense.
    depth : int
        Maximum depth.
    seed : int
        Seed of the training.
    data_dir : str or None
        Folder of the data sets.
    """
    spec = Spec(protocol, {"trees": TREES[protocol], "max_depth": depth})
    run, federation, setting = train_federation(
        data, spec, CLIENTS, seed, data_dir, defense=defense
    )
    attack = register.make("attack", Spec("timberstrike", {"chains": 1, "max_trees": 1}))
    for threat, principals in THREATS.items():
        view = view_of(run, principals, federation.local_data)
        guess = attack.run(view, np.random.default_rng(seed))
        case = federation.case(dict(setting.roles), principals, seed, threat, run)
        for row in score_guess("timberstrike", guess, case, None):
            if row["metric"] == "leaf_counts_exact":
                yield threat, row["value"], row["blind"] or 0.0


def recovery(options: Namespace) -> Iterator[Table]:
    """Yield the table of `timberstrike_recovery`."""
    scores: Scores = {}
    for data, protocol, defense, depth, seed in product(
        options.tables, TREES, DEFENSES, options.depths, SEEDS
    ):
        for threat, *shares in count_recovered_leaves(
            data, protocol, defense, depth, seed, options.data_dir
        ):
            key = (data, protocol, threat, defense)
            scores.setdefault((key, depth), []).append((shares[0], shares[1]))
    lines = []
    for key in dict.fromkeys(key for key, _ in scores):
        pairs_of_depth = [scores[key, depth] for depth in options.depths]
        cells = (percent([exact for exact, _ in pairs], digits=0) for pairs in pairs_of_depth)
        blind = percent([blind for pairs in pairs_of_depth for _, blind in pairs], digits=0)
        lines.append([*key, *cells, blind])
    depths = (f"depth {d}" for d in options.depths)
    title = "Leaves of first trees with exact class counts, percent, mean ± deviation over seeds."
    yield Table(title, ("table", "protocol", "threat", "defense", *depths, "blind"), lines)


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
        late, t = victim.late, victim.blocks[0].first_tree
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


def late(options: Namespace) -> Iterator[Table]:
    """Yield the tables of `timberstrike_late`."""
    cells: dict[tuple[str, str, int], list[Late]] = {}
    for data, depth, seed in product(options.tables, options.depths, SEEDS):
        for turn, leaves in count_late_leaves(data, depth, seed, options.data_dir).items():
            cells.setdefault((data, turn, depth), []).append(leaves)
    cells = dict(sorted(cells.items(), key=lambda item: item[0]))
    yield Table("Leaves of first trees in the cycle, percent:", _BY_DEPTH, [*by_depth(cells)])
    yield Table("By size, all depths:", _BY_SIZE, [*by_size(cells)])


ROUNDS, DEPTH = 30, 6
CLUES = ("hessian", "sums", "all")
SETTINGS = (
    ("pima", Spec("iid"), (3, 10, 30)),
    ("pima", Spec("quantity-skew", {"alpha": 0.3, "min_size": 50}), (3,)),
    ("stroke", Spec("iid"), (3, 10, 30)),
    ("stroke", Spec("feature-bands", {"feature": "age"}), (3, 10, 30)),
)
_CHAINS = (
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
    owner = {block.first_tree: block.sender for block in server_blocks.blocks}
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
    starters = [owner[block.first_tree] for block in rounds[0]]
    hits = [
        starters[chain] == owner[block.first_tree]
        for blocks, numbers in zip(rounds[1:], chains[1:], strict=True)
        for block, chain in zip(blocks, numbers, strict=True)
        if len(block.trees[0]) > 1
    ]
    return float(np.mean(hits))


def chains(options: Namespace) -> Iterator[Table]:
    """Yield the table of `timberstrike_chains`."""
    lines = []
    for data, partition, numbers in SETTINGS:
        for clients in numbers:
            results = [
                linked_share(data, partition, clients, seed, options.data_dir) for seed in SEEDS
            ]
            shares = (percent([f[c] for f in results], digits=0) for c in ("by lot", *CLUES))
            lines.append([data, f"`{partition}`", str(clients), *shares])
    title = (
        f"Percent of blocks after the first round, {ROUNDS} rounds, depth {DEPTH}; mean ± standard "
        "deviation over seeds."
    )
    yield Table(title, _CHAINS, lines)


STUDIES = {
    "timberstrike_recovery": Study(
        "Class counts that follow from the first tree of each client, by depth.", recovery, OPTIONS
    ),
    "timberstrike_late": Study(
        "Class counts of the first tree of a client that is not first in a cycle.", late, OPTIONS
    ),
    "timberstrike_chains": Study(
        "Anonymous trees of a bagging federation that are attributed to the right client.", chains
    ),
}
