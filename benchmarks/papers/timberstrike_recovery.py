"""Measure the class counts that follow from first trees which clients share, by depth.

``python -m fedtrees.benchmarks.papers.timberstrike_recovery --data-dir FOLDER`` prints a table for
models without a defense, with masked hessians and without statistics. In the cycle, the first tree
of every client is included, whichever trees it was grown on. There are no published results to
compare with. The blind baseline are the scaled counts of the adversary's rows.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from fedtrees.benchmarks.papers.study import markdown, options_of, percent, train_federation
from fedtrees.core.registry import register
from fedtrees.core.specs import Spec
from fedtrees.experiments.evaluate import score_guess
from fedtrees.protocols.views import view_of

SEEDS = (0, 1, 2)
CLIENTS = 3
THREATS = {"client": ("client-2",), "server": ("server",), "public": ("public",)}
TREES = {
    "flower-bagging": 1,
    "flower-cyclic": CLIENTS,
    "local-ensembles": 1,
}  # number of trees until each client has grown one
DEFENSES = ("none", "mask-sum-hessian", "split-only")

Key = tuple[str, str, str, str]  # table, protocol, threat and defense
Scores = dict[
    tuple[Key, int], list[tuple[float, float]]
]  # by depth: pairs of exact and blind shares, over seeds


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


def lines(scores: Scores, depths: Sequence[int]) -> Iterator[list[str]]:
    """Yield one line per table, protocol, threat and defense."""
    for key in dict.fromkeys(key for key, _ in scores):
        pairs_of_depth = [scores[key, depth] for depth in depths]
        cells = (percent([exact for exact, _ in pairs], digits=0) for pairs in pairs_of_depth)
        yield [
            *key,
            *cells,
            percent([blind for pairs in pairs_of_depth for _, blind in pairs], digits=0),
        ]


def main() -> None:
    """Run the study and print its table."""
    options = options_of("timberstrike_recovery", "--tables", "--depths")
    scores: Scores = {}
    for data, protocol, defense, depth, seed in product(
        options.tables, TREES, DEFENSES, options.depths, SEEDS
    ):
        for threat, *shares in count_recovered_leaves(
            data, protocol, defense, depth, seed, options.data_dir
        ):
            key = (data, protocol, threat, defense)
            scores.setdefault((key, depth), []).append((shares[0], shares[1]))
    columns = ("table", "protocol", "threat", "defense", *(f"depth {d}" for d in options.depths))
    print("Leaves of first trees with exact class counts, percent, mean ± deviation over seeds.\n")
    print(markdown((*columns, "blind"), [*lines(scores, options.depths)]))


if __name__ == "__main__":
    main()
