"""Evidence about single clients: their trees, and the trees of other clients in between."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.evidence.boosted import Evidence, Level, Targets
from fedtrees.attacks.evidence.clients.blocks import Block, Blocks, blocks_of
from fedtrees.attacks.evidence.clients.chains import Clues, link
from fedtrees.attacks.evidence.clients.histograms import told_apart
from fedtrees.attacks.evidence.clients.late_counts import LateCounts, late_counts
from fedtrees.attacks.evidence.clients.sizes import add_sizes
from fedtrees.attacks.evidence.clients.start import own_start
from fedtrees.attacks.evidence.clients.start_of_values import LeafValues, Shares, shares_of_values
from fedtrees.attacks.evidence.counts import first_gradient
from fedtrees.attacks.evidence.laws import law_of_shared
from fedtrees.attacks.evidence.marginals import likely_rows
from fedtrees.attacks.evidence.opened_leaves import EVERYONE, OTHERS, opened_leaves
from fedtrees.attacks.evidence.sketched import are_drawn, columns_of
from fedtrees.attacks.evidence.view import LEVELS, evidence_of, with_opened
from fedtrees.core.guess import Guess, LeafCounts, Records
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.boosted.losses import (
    SQUARED_ERROR,
    Objective,
    estimated_score,
    objective_of,
    start_margin,
)

Starts = Literal["own", "model"]


@dataclass(frozen=True, eq=False)
class Victim:
    """One attacked client.

    Attributes
    ----------
    owner : str or None
        The client's name. None if it is unknown.
    blocks : tuple of Block
        The trees that the client sent, in order. Empty if it sent sums for trees of all clients.
    evidence : Evidence
        What the adversary saw of the client.
    late : LateCounts or None
        Counts of its first tree, if that was grown on other clients' trees.
    """

    owner: str | None
    blocks: tuple[Block, ...]
    evidence: Evidence
    late: LateCounts | None = None

    @property
    def late_leaves(self) -> LeafCounts:
        """The counts `late`, with the number of the tree in the released model."""
        assert self.late is not None
        first, late = self.blocks[0], self.late
        counts = np.stack([late.n - late.n1, late.n1], axis=1)
        if self.evidence.targets is not None:
            counts = late.n[:, None]
        return LeafCounts(first.first, first.trees[0].leaves, counts)


def victims_of(
    view: View, clues: Clues = "all", starts: Starts = "own", max_level: Level = "histograms"
) -> list[Victim]:
    """Return the evidence about every other client: its trees, or its sums in common trees.

    Parameters
    ----------
    view : View
        The adversary's view.
    clues : {"hessian", "sums", "all"}, default "all"
        How blocks without names are matched, see `fedtrees.attacks.evidence.clients.chains`.
    starts : {"own", "model"}, default "own"
        Base score for a client's first trees: its local one, or that of the model.
    max_level : {"histograms", "statistics", "values"}, default "histograms"
        Most detailed statistics to use in common trees. Opened leaf sums of single clients are used
        unless it is "values", and their histograms only if it is "histograms". Leaf values of
        common trees do not belong to a single client.

    Returns
    -------
    list of Victim
        Empty if the view contains neither trees nor sums of single clients.
    """
    objective = objective_of(view.parameters.get("objective"), view.schema.classes)
    shared = blocks_of(view)
    if shared is None:
        victims = [] if max_level == "values" else _by_sums(view)
        if victims or max_level != "histograms":
            return victims
        return [Victim(name, (), evidence) for name, evidence in told_apart(view).items()]
    chains = [c for c in chains_of(shared, clues) if c[0].sender not in view.principals]
    victims = [
        Victim(chain[0].sender, tuple(chain), _evidence(view, shared, chain, objective, starts))
        for chain in chains
    ]
    if starts == "own":
        victims = [_count_first_tree(victim, view) for victim in victims]
    sized_evidence = add_sizes(view, [v.evidence for v in victims], [v.late for v in victims])
    return [replace(v, evidence=e) for v, e in zip(victims, sized_evidence, strict=True)]


def _by_sums(view: View) -> list[Victim]:
    """Return the clients whose leaf sums were opened one by one.

    The hessians of the first round are equal, so that they reveal the number of rows of a client.
    """
    opened = opened_leaves(view)
    if EVERYONE in opened or OTHERS in opened or not opened:
        return []
    released = evidence_of(view, "statistics")
    assert released is not None
    victims = []
    for source, sums in opened.items():
        if source in view.principals:
            continue
        evidence = with_opened(view, released, sums)
        h = first_gradient(evidence)[1]
        n_rows = round(float(sums.sums[0][:, 1].sum()) / h)
        victims.append(Victim(source, (), replace(evidence, n_rows=n_rows)))
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
) -> Evidence:
    """Return a client's evidence without the number of its rows."""
    parameters, outputs = view.parameters, objective.n_outputs
    late = shared.score is not None and not shared.per_round and chain[0].first > 0
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
    return Evidence(
        trees=tuple(trees if has_sums else (replace(t, g=None, h=None) for t in trees)),
        level="statistics" if has_sums else "values",
        base_margin=start[0] if outputs == 1 else start,
        learning_rate=parameters["learning_rate"],
        reg_lambda=parameters["reg_lambda"],
        min_child_weight=parameters["min_child_weight"],
        rounding=None if has_sums else law_of_shared(view, shared.kind),
        foreign=tuple(_foreign(order, outputs, has_sums)),
        restart=restart,
        own_inside=False,
        most_rows=most_rows,
        mean_start=exact and parameters["base_score"] is None
        and parameters["intercept"] == "mean" and not late and parameters["subsample"] == 1,
        reg_alpha=parameters["reg_alpha"],
        subsample=parameters["subsample"],
        constant_hessian=objective is SQUARED_ERROR,
        targets=Targets.unknown() if objective is SQUARED_ERROR else None,
        population=view.population,
    )  # fmt: skip


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
    if shared.score is not None and first.first == 0:
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
    local_blocks = {block.first: block for block in chain}
    rounds: dict[int, list[Block]] = {}
    for block in shared.blocks:
        rounds.setdefault(block.round, []).append(block)
    for blocks in rounds.values():
        for block in sorted(blocks, key=lambda b: b.first not in local_blocks):
            yield local_blocks.get(block.first, block), block.first in local_blocks


def _count_first_tree(victim: Victim, view: View) -> Victim:
    """Count the first tree of a client if it was grown on other clients' trees."""
    if not victim.evidence.is_foreign(0):
        return victim
    errors = victim.blocks[0].h_error
    late = late_counts(victim.evidence, view.prior_rows, view.schema, errors[0] if errors else None)
    return replace(victim, late=late)


def with_likely(
    victims: Sequence[Victim], view: View, rng: np.random.Generator, *, bins: bool
) -> list[Victim]:
    """Add likely rows to the victims that sent sums in common trees and are known by name.

    The rows have the marginals of the victim, if its sketch is seen, or else those of all victims
    (`likely_rows`).

    Parameters
    ----------
    victims : sequence of Victim
        The attacked clients.
    view : View
        The adversary's view.
    rng : numpy.random.Generator
        Randomness of the rows.
    bins : bool
        Whether the attack uses histograms. These are more informative than randomised sketches,
        which are then ignored.
    """
    updated = []
    for victim in victims:
        e = victim.evidence
        if victim.owner is not None and e.n_rows is not None and not victim.blocks:
            drawn = bins and e.histograms is not None and are_drawn(view)
            likely = None if drawn else likely_rows(view, rng, victim.owner, e.n_rows)
            is_sketched = likely is not None and victim.owner in columns_of(view)
            e = replace(e, likely=likely, sketched=is_sketched)
        updated.append(replace(victim, evidence=e))
    return updated


def union_of(
    victims: Sequence[Victim], max_level: Level, reconstruct: Callable[[Evidence], Guess]
) -> Guess:
    """Return the union of the reconstructions of all victims.

    The owner is set if all victims are known by name. Leaf counts have tree numbers of the released
    model. Notes about numbers of trees are added up over victims. For other notes the maximum is
    used.

    Parameters
    ----------
    victims : sequence of Victim
        The attacked clients.
    max_level : {"histograms", "statistics", "values"}
        Most detailed statistics to use.
    reconstruct : callable
        Converts one victim's evidence into a guess about its rows.
    """
    tables, owners = [], []
    counts: list[LeafCounts] = []
    notes: dict[str, float] = {"victims": float(len(victims))}
    for victim in victims:
        guess = reconstruct(_at_most(victim.evidence, max_level))
        (records,) = guess.all(Records)
        tables.append(records.table)
        owners += [victim.owner] * len(records.table)
        first = victim.blocks[0].first if victim.blocks else 0
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
    return Guess((Records(Table.concat(tables), owner=owner), *added_up(counts)), notes)


def added_up(counts: Sequence[LeafCounts]) -> list[LeafCounts]:
    """Return one claim for every tree, adding the counts of several clients in the same tree."""
    claims: dict[int, LeafCounts] = {}
    for one in counts:
        before = claims.get(one.tree)
        if before is not None:
            _, a, b = np.intersect1d(before.leaf, one.leaf, return_indices=True)
            one = LeafCounts(one.tree, one.leaf[b], before.counts[a] + one.counts[b])
        claims[one.tree] = one
    return [c for c in claims.values() if len(c.leaf)]


def _at_most(evidence: Evidence, level: Level) -> Evidence:
    if LEVELS.index(evidence.level) <= LEVELS.index(level):
        return evidence
    evidence = replace(evidence, level=level, histograms=None)
    if level != "values":
        return evidence
    bare = tuple(replace(t, g=None, h=None) for t in evidence.trees)
    return replace(evidence, trees=bare, level="values")
