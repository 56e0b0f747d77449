"""Claims about the leaves of the first round, restricted to the counts that the sums allow."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedtrees.attacks.evidence.counts import Counts
from fedtrees.attacks.evidence.laws import law_of_sums
from fedtrees.attacks.evidence.readback.read import FirstTree, first_trees, values_seen
from fedtrees.attacks.evidence.readback.values import counts_of_values
from fedtrees.attacks.evidence.view import evidence_of
from fedtrees.core.guess import Guess, LeafCounts
from fedtrees.core.view import View


def first_round(view: View) -> list[FirstTree] | None:
    """Infer the counts of the first round's trees without reading later trees, as `first_trees`."""
    classes = len(view.schema.classes)
    outputs = 1 if classes == 2 else classes
    seen = tuple(s for s in view.seen if getattr(s.message, "tree", 0) < outputs)
    part = replace(view, seen=seen)
    evidence = evidence_of(part)
    return None if evidence is None else first_trees(part, evidence)


def counts_read_back(view: View) -> list[FirstTree] | None:
    """Return `first_round` if sums are bounded or noisy, and None if they are exact."""
    return None if law_of_sums(view) is None else first_round(view)


def counts_of(trees: Sequence[FirstTree]) -> tuple[Counts, ...]:
    """Return the victims' counts in the leaves of all trees, or none unless all are certain."""
    if not all(tree.certain.all() for tree in trees):
        return ()
    return tuple(Counts(*tree.leaves[0].T, 0.0) for tree in trees)


def with_counts_read_back(
    guess: Guess, view: View, trees: Sequence[FirstTree] | None = None
) -> Guess:
    """Replace the leaf counts of a guess by the most probable counts of the first round.

    If histograms are seen, the counts are those of `FirstTree`. Otherwise claims are clipped to the
    possible range. With exact sums a guess is returned unchanged.

    Parameters
    ----------
    guess : Guess
        The guess of an attack.
    view : View
        The adversary's view.
    trees : sequence of FirstTree, optional
        Result of `counts_read_back`, if it was already computed.
    """
    if law_of_sums(view) is None:
        return guess
    trees = counts_read_back(view) if trees is None else trees
    if not trees:
        return _with_counts_of_values(guess, view)
    claims = tuple(
        _moved(claim, trees[claim.tree])
        if isinstance(claim, LeafCounts) and claim.tree < len(trees)
        else claim
        for claim in guess.claims
    )
    return replace(guess, claims=claims)


def _moved(claim: LeafCounts, read: FirstTree) -> LeafCounts:
    leaves = read.tree.leaves
    if not np.array_equal(claim.leaf, leaves):
        return claim
    if all(len(s.sums.nodes) for s in read.sources):
        return LeafCounts(claim.tree, leaves, read.likely)
    return LeafCounts(claim.tree, leaves, np.clip(claim.counts, *read.leaves))


def _with_counts_of_values(guess: Guess, view: View) -> Guess:
    """Replace the counts of the first tree by those that its leaf values make most probable."""
    seen = values_seen(view)
    counts = None if seen is None else counts_of_values(*seen, np.random.default_rng(0))
    if seen is None or counts is None:
        return guess
    leaves = seen[0].tree.leaves
    claims = tuple(
        LeafCounts(0, leaves, counts)
        if isinstance(claim, LeafCounts) and claim.tree == 0 and np.array_equal(claim.leaf, leaves)
        else claim
        for claim in guess.claims
    )
    return replace(guess, claims=claims)
