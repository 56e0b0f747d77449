"""Observations of single clients: their trees with the trees of other clients in between, or the
histograms and leaf sums that each of them sent for common trees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.clients.base_score import LeafValues, Shares, own_start, shares_of_values
from fedtrees.attacks.clients.client_sizes import LateCounts, add_sizes, late_counts
from fedtrees.attacks.clients.client_trees import Block, Blocks, Clues, blocks_of, link
from fedtrees.attacks.counts.leaf_sums import initial_gradient, reliability_of
from fedtrees.attacks.observations.applicability import no_trees
from fedtrees.attacks.observations.boosting import (
    BoostingObservations,
    ColumnKnowledge,
    Distortion,
    Level,
    ObservedSums,
    RowCounts,
    Targets,
)
from fedtrees.attacks.observations.columns import all_sketched, are_drawn, columns_of
from fedtrees.attacks.observations.reading import (
    histograms_of,
    noise_of,
    opened_leaves,
    read_boosting,
    with_opened,
)
from fedtrees.attacks.observations.replay import (
    EVERYONE,
    OTHERS,
    law_of_shared,
    params_of,
    replay_trees,
)
from fedtrees.attacks.observations.rows_from_columns import likely_rows
from fedtrees.attacks.solvers.allocation import largest_remainder
from fedtrees.core.claims import Guess, LeafCounts, Records
from fedtrees.core.reasons import Reason
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import LabelSums
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.histogram import from_fixed
from fedtrees.trees.boosted.losses import (
    SQUARED_ERROR,
    Objective,
    estimated_score,
    objective_of,
    start_margin,
)

# Smallest mean reliability of single clients' bins. Below it, the sum over clients is more
# informative. Breast cancer, three seeds: laplace-hist 16 (.5) .610 -> .620, hist-rounding 1 (.3)
# .610 -> .617, laplace-hist 1 (.004) .553 -> .549.
LEAST_RELIABLE = 0.1
# Largest number of bins of all clients and nodes, of 16 bytes each: half a gigabyte.
MOST_BINS = 3e7


def observe_client_histograms(view: View) -> dict[str, BoostingObservations]:
    """Return the evidence of each client that the adversary does not control, by name.

    The sums of a client's nodes and bins are computed from the histograms that this client sent,
    with the noise that it added. The trees are those of `read_boosting`.

    The result is empty if the view contains only sums over clients, fewer than two other clients,
    or more than `MOST_BINS` bins, and if noise hides nearly everything in single histograms
    (`LEAST_RELIABLE`).
    """
    replayed = replay_trees(view, by_client=True)
    first_tree = next(replayed, None)
    if first_tree is None:
        return {}
    names = sorted(first_tree.sums.keys() - {EVERYONE, OTHERS, *view.principals})
    # with one other client the sums over clients are already its sums
    joint = read_boosting(view) if len(names) > 1 else None
    if joint is None or joint.observed.cuts is None:
        return {}
    cuts = joint.observed.cuts
    n_nodes = sum(len(h.nodes) for h in joint.observed.histograms or ())
    if n_nodes * cuts.total_bins * len(names) > MOST_BINS:
        return {}
    trees_by_client = [first_tree, *replayed]
    evidence: dict[str, BoostingObservations] = {}
    for name in names:
        sums = (from_fixed(one.totals[name], one.bits) for one in trees_by_client)
        trees = tuple(
            replace(tree, g=part[:, 0], h=part[:, 1])
            for tree, part in zip(joint.trees, sums, strict=True)
        )
        evidence[name] = joint.change(
            trees=trees,
            histograms=tuple(histograms_of(view, one, name) for one in trees_by_client),
            noise=noise_of(view, joint.trees, cuts, (1, 1), rows=trees),
            own_sums=tuple(np.zeros((len(t.leaves), 2)) for t in trees),
            includes_own="none",
            mean_start=False,
        )
    sizes = _sizes(view, evidence).tolist()
    reliable = [reliability_of(e, n) for e, n in zip(evidence.values(), sizes, strict=True)]
    if np.mean(reliable) < LEAST_RELIABLE:
        return {}
    return {name: e.change(n_rows=n) for (name, e), n in zip(evidence.items(), sizes, strict=True)}


def _sizes(view: View, evidence_of_client: dict[str, BoostingObservations]) -> NDArray[np.int64]:
    """Return the number of rows of every client: announced, or from its sums over all rows."""
    rows = {item.sender: float(m.sums[0]) for item, m in view.messages(LabelSums)}
    if not evidence_of_client.keys() <= rows.keys():
        rows = {
            name: float(e.trees[0].h[0]) / initial_gradient(e)[1]  # type: ignore[index]
            for name, e in evidence_of_client.items()
        }
    n_own = 0 if view.rows is None else len(view.rows)
    return largest_remainder(
        np.array([max(rows[name], 1.0) for name in evidence_of_client]), view.n_rows - n_own
    )


Starts = Literal["own", "model"]


@dataclass(frozen=True, eq=False)
class ClientObservations:
    """One attacked client.

    Attributes
    ----------
    owner : str or None
        The client's name. None if it is unknown.
    blocks : tuple of Block
        The trees that the client sent, in order. Empty if it sent sums for trees of all clients.
    evidence : BoostingObservations
        What the adversary saw of the client.
    late : LateCounts or None
        Counts of its first tree, if that was grown on other clients' trees.
    """

    owner: str | None
    blocks: tuple[Block, ...]
    evidence: BoostingObservations
    late: LateCounts | None = None

    @property
    def late_leaves(self) -> LeafCounts:
        """The counts `late`, with the number of the tree in the released model."""
        assert self.late is not None
        first, late = self.blocks[0], self.late
        counts = np.stack([late.n - late.n1, late.n1], axis=1)
        if self.evidence.targets is not None:
            counts = late.n[:, None]
        return LeafCounts(first.first_tree, first.trees[0].leaves, counts)


def observe_clients(
    view: View, clues: Clues = "all", starts: Starts = "own", max_level: Level = "histograms"
) -> list[ClientObservations]:
    """Return the evidence about every other client: its trees, or its sums in common trees.

    Parameters
    ----------
    view : View
        The adversary's view.
    clues : {"hessian", "sums", "all"}, default "all"
        How blocks without names are matched, see `fedtrees.attacks.clients.client_trees`.
    starts : {"own", "model"}, default "own"
        Base score for a client's first trees: its local one, or that of the model.
    max_level : {"histograms", "statistics", "values"}, default "histograms"
        Most detailed statistics to use in common trees. Opened leaf sums of single clients are used
        unless it is "values", and their histograms only if it is "histograms". Leaf values of
        common trees do not belong to a single client.

    Returns
    -------
    list of ClientObservations
        Empty if the view contains neither trees nor sums of single clients.
    """
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    shared = blocks_of(view)
    if shared is None:
        victims = [] if max_level == "values" else _by_sums(view)
        if victims or max_level != "histograms":
            return victims
        return [
            ClientObservations(name, (), evidence)
            for name, evidence in observe_client_histograms(view).items()
        ]
    chains = [c for c in chains_of(shared, clues) if c[0].sender not in view.principals]
    victims = [
        ClientObservations(
            chain[0].sender, tuple(chain), _evidence(view, shared, chain, objective, starts)
        )
        for chain in chains
    ]
    if starts == "own":
        victims = [_count_first_tree(victim, view) for victim in victims]
    sized_evidence = add_sizes(view, [v.evidence for v in victims], [v.late for v in victims])
    return [replace(v, evidence=e) for v, e in zip(victims, sized_evidence, strict=True)]


def _by_sums(view: View) -> list[ClientObservations]:
    """Return the clients whose leaf sums were opened one by one.

    The hessians of the first round are equal, so that they reveal the number of rows of a client.
    """
    opened = opened_leaves(view)
    if EVERYONE in opened or OTHERS in opened or not opened:
        return []
    released = read_boosting(view, "statistics")
    assert released is not None
    victims = []
    for source, sums in opened.items():
        if source in view.principals:
            continue
        evidence = with_opened(view, released, sums)
        h = initial_gradient(evidence)[1]
        n_rows = round(float(sums.sums[0][:, 1].sum()) / h)
        victims.append(ClientObservations(source, (), evidence.change(n_rows=n_rows)))
    return victims


def chains_of(shared: Blocks, clues: Clues) -> list[list[Block]]:
    """Group blocks by client: by name if all have one, or else by `link`."""
    named = all(b.sender is not None for b in shared.blocks)
    if named or not shared.per_round:
        chains: dict[str | None, list[Block]] = {}
        for block in shared.blocks:
            chains.setdefault(block.chain or block.sender, []).append(block)
        return list(chains.values())
    rounds: dict[int, list[Block]] = {}
    for block in shared.blocks:
        rounds.setdefault(block.round, []).append(block)
    named_blocks = [b for b in shared.blocks if b.sender is not None]
    unknown = [[b for b in blocks if b.sender is None] for blocks in rounds.values()]
    linked: list[list[Block]] = [[] for _ in unknown[0]]
    for blocks, numbers in zip(unknown, link(unknown, clues), strict=True):
        for block, chain in zip(blocks, numbers, strict=True):
            linked[chain].append(block)
    named_only = Blocks(tuple(named_blocks), shared.score, shared.per_round)
    return [*linked, *(chains_of(named_only, clues) if named_blocks else [])]


def _evidence(
    view: View, shared: Blocks, chain: Sequence[Block], objective: Objective, starts: Starts
) -> BoostingObservations:
    """Return a client's evidence without the number of its rows."""
    parameters, outputs = view.parameters, objective.n_outputs
    late = shared.score is not None and not shared.per_round and chain[0].first_tree > 0
    most_rows = max(view.n_rows - (0 if view.rows is None else len(view.rows)), 1)
    score, exact = shared.score, starts == "own"
    if not late and (starts == "own" or score is None):
        score, exact = _own_score(view, shared, chain, objective, most_rows)
    assert score is not None
    start = start_margin(objective, score)
    order = list(_timeline(shared, chain))
    trees = [t for block, _ in order for t in block.trees]
    has_sums = all(map(_has_sums, chain[0].trees[:outputs]))
    restart = None
    if shared.score is not None and not late:
        shift = start_margin(objective, shared.score) - start
        restart = (len(chain[0].trees), shift) if np.any(shift) else None
    mean_start = (
        exact
        and not late
        and parameters["base_score"] is None
        and parameters["intercept"] == "mean"
        and parameters["subsample"] == 1
    )
    return BoostingObservations(
        tuple(trees),
        start[0] if outputs == 1 else start,
        params_of(view),
        ObservedSums("statistics", includes_own="none"),
        Distortion(rounding=None if has_sums else law_of_shared(view, shared.kind)),
        RowCounts(most_rows=most_rows, mean_start=mean_start),
        ColumnKnowledge(population=view.population),
        tuple(_foreign(order, outputs, has_sums)),
        restart,
        objective is SQUARED_ERROR,
        Targets.unknown() if objective is SQUARED_ERROR else None,
    ).at_most("statistics" if has_sums else "values")


def _has_sums(tree: Tree) -> bool:
    return tree.h is not None and tree.g is not None


def _foreign(order: Sequence[tuple[Block, bool]], outputs: int, has_sums: bool) -> Iterator[bool]:
    """Yield whether each tree only changes the margins of a client's rows.

    This is the case for trees of other clients. If sums are used, it is also the case for rounds
    whose masked sums could not be restored (a tree of one leaf has no equation).
    """
    for block, is_local in order:
        for i in range(0, len(block.trees), outputs):
            trees = block.trees[i : i + outputs]
            yield from [not is_local or (has_sums and not all(map(_has_sums, trees)))] * len(trees)


def _own_score(
    view: View, shared: Blocks, chain: Sequence[Block], objective: Objective, most_rows: int
) -> tuple[NDArray[np.float32], bool]:
    """Return the base score of a client's first trees, and whether it is certain."""
    declared, intercept = view.parameters["base_score"], view.parameters["intercept"]
    first = chain[0]
    if declared is not None:
        return np.full(objective.n_outputs, declared, dtype=np.float32), True
    if first.score is not None:
        return first.score, True
    if shared.score is not None and first.first_tree == 0:
        return shared.score, True  # of the client whose trees arrived first
    usual = shared.usual if shared.score is None else shared.score
    assert usual is not None
    if objective is SQUARED_ERROR:
        return _mean_target(shared, chain, usual), False
    if objective.n_outputs > 1 and intercept == "newton":
        everyones = np.array([2.0, *np.ones(objective.n_outputs)])
        return estimated_score(objective, everyones, intercept), True
    start = own_start(
        first.trees[: objective.n_outputs], objective, most_rows, intercept,
        view.parameters["subsample"] < 1, view.parameters["reg_alpha"] > 0,
    )  # fmt: skip
    if start is not None:
        return start.score, True
    if objective.n_outputs == 1:
        shares = _shares(view, shared, first.trees[0], float(usual[0]), most_rows)
        if shares is not None:
            return shares.scores[:1], len(shares.rows) == 1
    return usual, False


def _mean_target(
    shared: Blocks, chain: Sequence[Block], score: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return a client's mean target, float32, shape (1,), or ``score`` if no sums reveal it.

    The second block of the client starts from the model's score and all trees before. The mean of
    its gradients is that of its margins less that of its targets. Trees of other clients are
    assumed to add the same mean value to its rows as to the rows that they were grown on.
    """
    round_trees = [t for b in shared.blocks if b.round == chain[0].round for t in b.trees]
    root = chain[1].trees[0] if len(chain) > 1 else None
    if root is None or not all(map(_has_sums, [*round_trees, root])):
        return score
    margin = float(score[0])
    for tree in round_trees:
        assert tree.h is not None
        h = tree.h[tree.leaves]
        margin += float(h @ tree.value[tree.leaves] / h.sum())
    assert root.g is not None
    assert root.h is not None
    # with squared error the gradient of a row is its margin less its target
    mean = margin - root.g[root.leaves].sum() / root.h[root.leaves].sum()
    return np.array([mean], dtype=np.float32)


def _shares(view: View, shared: Blocks, tree: Tree, usual: float, most_rows: int) -> Shares | None:
    """Return the shares of positives that explain a tree's leaf values."""
    parameters = view.parameters
    if law_of_shared(view, shared.kind) is not None:
        return None
    if parameters["subsample"] < 1 or parameters["reg_alpha"]:
        return None
    settings = (parameters["reg_lambda"], parameters["min_child_weight"])
    leaves = LeafValues.of(tree, parameters["learning_rate"], *settings, most_rows)
    likely = view.prior_rows
    expected = usual if likely is None or not len(likely) else float(likely.y.mean())
    return shares_of_values(leaves, expected, parameters["intercept"])


def _timeline(shared: Blocks, chain: Sequence[Block]) -> Iterator[tuple[Block, bool]]:
    """Yield the blocks in the order in which they changed a client's margins.

    Each block comes with a flag whether the client sent it. In bagging a client's block comes
    before the other blocks of the same round, because it was not grown on them.
    """
    if shared.score is None:
        yield from ((block, True) for block in chain)
        return
    local_blocks = {block.first_tree: block for block in chain}
    rounds: dict[int, list[Block]] = {}
    for block in shared.blocks:
        rounds.setdefault(block.round, []).append(block)
    for blocks in rounds.values():
        for block in sorted(blocks, key=lambda b: b.first_tree not in local_blocks):
            yield local_blocks.get(block.first_tree, block), block.first_tree in local_blocks


def _count_first_tree(victim: ClientObservations, view: View) -> ClientObservations:
    """Count the first tree of a client if it was grown on other clients' trees."""
    if not victim.evidence.is_foreign(0):
        return victim
    errors = victim.blocks[0].h_error
    late = late_counts(victim.evidence, view.prior_rows, view.schema, errors[0] if errors else None)
    return replace(victim, late=late)


def reconstruct_rows(
    view: View,
    victims: Sequence[ClientObservations],
    max_level: Level,
    reconstruct: Callable[[BoostingObservations], Guess],
    rng: np.random.Generator,
    *,
    sketches: bool,
    bins: bool,
) -> Guess:
    """Reconstruct the rows of every client separately, or else those of all clients together.

    This is the driver of all attacks that reconstruct rows from trees. They differ in
    ``reconstruct``.

    Parameters
    ----------
    view : View
        The adversary's view.
    victims : sequence of ClientObservations
        Clients that can be observed separately. If there are none, the rows of all clients are
        reconstructed together.
    max_level : {"histograms", "statistics", "values"}
        Most detailed statistics to use.
    reconstruct : callable
        Converts observations into a guess about the rows behind them.
    rng : numpy.random.Generator
        Randomness of the rows that sketches make likely.
    sketches : bool
        Whether to use sketches as a prior, if they are seen.
    bins : bool
        Whether the attack uses histograms. These are more informative than randomised sketches,
        which are then ignored.

    Returns
    -------
    Guess
        Without a claim if the view contains no usable trees.
    """
    if victims:
        if sketches:
            victims = [_with_sketch_rows(victim, view, rng, bins) for victim in victims]
        return reconstruct_each_client(victims, max_level, reconstruct)
    evidence = read_boosting(view, max_level)
    if evidence is None:
        return Guess.none(no_trees(view, supports_regression=True) or Reason("no-start-or-rounds"))
    if sketches:
        likely = likely_rows(view, rng)
        sketched = likely is not None and all_sketched(view)
        evidence = evidence.change(sketch_rows=likely, sketched=sketched)
    return reconstruct(evidence)


def _with_sketch_rows(
    victim: ClientObservations, view: View, rng: np.random.Generator, bins: bool
) -> ClientObservations:
    """Add likely rows if the client sent sums in common trees and is known by name.

    The rows have the marginals of the client, if its sketch is seen, or else those of all victims
    (`likely_rows`).
    """
    e = victim.evidence
    if victim.owner is None or e.row_counts.n_rows is None or victim.blocks:
        return victim
    drawn = bins and e.observed.histograms is not None and are_drawn(view)
    likely = None if drawn else likely_rows(view, rng, victim.owner, e.row_counts.n_rows)
    is_sketched = likely is not None and victim.owner in columns_of(view)
    return replace(victim, evidence=e.change(sketch_rows=likely, sketched=is_sketched))


def reconstruct_each_client(
    victims: Sequence[ClientObservations],
    max_level: Level,
    reconstruct: Callable[[BoostingObservations], Guess],
) -> Guess:
    """Return the union of the reconstructions of all victims.

    The owner is set if all victims are known by name. Leaf counts have tree numbers of the released
    model. Notes about numbers of trees are added up over victims. For other notes the maximum is
    used. Parameters are those of `reconstruct_rows`.
    """
    tables, owners = [], []
    counts: list[LeafCounts] = []
    notes: dict[str, float] = {"victims": float(len(victims))}
    for victim in victims:
        guess = reconstruct(victim.evidence.at_most(max_level))
        (records,) = guess.all(Records)
        tables.append(records.table)
        owners += [victim.owner] * len(records.table)
        first = victim.blocks[0].first_tree if victim.blocks else 0
        counts += [replace(c, tree=first + c.tree) for c in guess.all(LeafCounts)]
        if max_level != "values" and victim.late is not None:
            counts.append(victim.late_leaves)
            notes["late_leaves"] = notes.get("late_leaves", 0.0) + len(victim.late.n)
            certain = notes.get("late_leaves_certain", 0.0)
            notes["late_leaves_certain"] = certain + float(victim.late.certain.sum())
        for key, value in guess.notes.items():
            if key.startswith("trees"):
                notes[key] = notes.get(key, 0.0) + value
            else:
                notes[key] = max(notes.get(key, 0.0), value)
    named = tuple(o for o in owners if o is not None)
    owner = named if len(named) == len(owners) else None
    return Guess((Records(Table.concat(tables), owner=owner), *sum_leaf_counts(counts)), notes)


def sum_leaf_counts(counts: Sequence[LeafCounts]) -> list[LeafCounts]:
    """Return one claim for every tree, adding the counts of several clients in the same tree."""
    claims: dict[int, LeafCounts] = {}
    for one in counts:
        before = claims.get(one.tree)
        if before is not None:
            _, a, b = np.intersect1d(before.leaf, one.leaf, return_indices=True)
            one = LeafCounts(one.tree, one.leaf[b], before.counts[a] + one.counts[b])
        claims[one.tree] = one
    return [c for c in claims.values() if len(c.leaf)]
