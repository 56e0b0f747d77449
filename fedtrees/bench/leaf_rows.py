"""Leaf counts an attack guessed, scored against the rows the trees were grown on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fedtrees.bench.federation import Federation
from fedtrees.core.guess import Guess
from fedtrees.core.schema import Table
from fedtrees.messages.shared_trees import ClientModels, ClientTrees
from fedtrees.metrics.leaf_counts import (
    blind_leaf_counts,
    score_leaf_counts,
    share_right,
    true_leaf_counts,
)
from fedtrees.protocols.base import Training, client_names
from fedtrees.trees.boosted.forest import Tree


def leaf_scores(
    guess: Guess, federation: Federation, principals: tuple[str, ...], training: Training
) -> Iterator[tuple[str, float, float | None]]:
    """Yield metric, score and blind score (None where there is none) of the guessed counts.

    The trees scored are those of the first round; where clients grow trees alone, the first round
    of every victim, on its own rows. Of more than two classes,
    each tree's class counts against the rest. The blind line is what own rows suggest, scaled to
    the rows the tree was grown on. Of two classes and trees of everybody's rows also
    ``leaf_counts_right``: of all leaves returned, in later trees too, the share that is right.
    """
    model = training.model
    per_round = model.objective.n_outputs
    own = federation.own(principals)
    shared = list(_first_blocks(training))
    grown = _grown_on(federation, principals, shared, per_round)
    if not grown:
        return
    true, blind = [], []
    for t, truth in grown.items():
        k, leaves = 1 if per_round == 1 else t % per_round, model.trees[t].leaves
        held = truth.take(np.arange(0)) if own is None else own
        nodes, own_nodes = (model.apply(rows.X)[:, t] for rows in (truth, held))
        true.append(true_leaf_counts(t, nodes, truth.y == k, leaves))
        blind.append(blind_leaf_counts(t, own_nodes, held.y == k, leaves, len(truth)))
    first = [c for c in guess.leaf_counts if c.tree in grown]
    got, line = score_leaf_counts(first, true).as_dict(), score_leaf_counts(blind, true).as_dict()
    for metric, value in got.items():
        yield metric, value, line[metric]
    if per_round == 1 and not shared:
        truth = federation.victims(principals)
        nodes = model.apply(truth.X)
        later = [
            true_leaf_counts(c.tree, nodes[:, c.tree], truth.y, model.trees[c.tree].leaves)
            for c in guess.leaf_counts
        ]
        yield "leaf_counts_right", share_right(guess.leaf_counts, later), None


def _grown_on(
    federation: Federation,
    principals: tuple[str, ...],
    shared: list[tuple[str, int]],
    per_round: int,
) -> dict[int, Table]:
    """Return the trees to score, by their number in the model, and the victims' rows in each."""
    if not shared:
        everyone = federation.victims(principals)
        return dict.fromkeys(range(per_round), everyone)
    held = dict(zip(client_names(len(federation.clients)), federation.clients, strict=True))
    return {
        first + k: held[sender]
        for sender, first in shared
        if sender not in principals
        for k in range(per_round)
    }


def _first_blocks(training: Training) -> Iterator[tuple[str, int]]:
    """Yield clients and the model's number of their first tree."""
    replies: dict[str, ClientTrees] = {}
    clients = [name for name, role in training.transcript.roles.items() if role == "client"]
    for d in training.transcript:
        if isinstance(d.message, ClientModels):
            starts = np.cumsum(d.message.trees) - d.message.trees
            yield from ((clients[o], int(i)) for o, i in zip(d.message.owner, starts, strict=True))
            return
        if isinstance(d.message, ClientTrees) and len(d.message.sizes):
            replies.setdefault(d.sender, d.message)
    trees, taken = training.model.trees, set[int]()
    for sender, reply in replies.items():
        # all replies are of as many trees
        places = (i for i in range(0, len(trees), len(reply.sizes)) if i not in taken)
        number = next((i for i in places if _here(reply, trees, i)), None)
        if number is not None:
            taken.add(number)
            yield sender, number


def _here(reply: ClientTrees, trees: Sequence[Tree], number: int) -> bool:
    """Tell whether the trees of a reply stand in the model from this number on."""
    there = trees[number : number + len(reply.sizes)]
    same = [len(t) for t in there] == reply.sizes.tolist()
    told = [("threshold", reply.threshold), ("value", reply.value), ("h", reply.sum_hessian)]
    return same and all(
        sent is None or np.array_equal(np.concatenate([getattr(t, name) for t in there]), sent)
        for name, sent in told
    )
