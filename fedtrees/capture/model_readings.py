"""What somebody reads from the models that sites shared, as `fedtrees.audit` reads model files."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.audit import Audit, Known, audit
from fedtrees.audit.exposure import TreeExposure
from fedtrees.audit.model import ModelFile
from fedtrees.capture.models import Exchange, Sent, joined, trees_of
from fedtrees.capture.readings import Reading
from fedtrees.capture.records import Record
from fedtrees.capture.training import SERVER
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.routing import Routes

#: Whoever sees all that crosses, and is no party.
THIRD = "third"
#: Who grew a tree that came without a name.
SOMEBODY = "one of the others"


@dataclass(frozen=True)
class LeafRows(Reading):
    """Rows and positives of leaves, tree by tree."""

    leaves: tuple[tuple[Tree, TreeExposure], ...] = ()

    def wrong(self, truth: Table) -> int:
        """Return how many leaves hold other rows."""
        return sum(self._wrong(truth))

    def wrong_of_all(self, truths: Iterable[Table]) -> int:
        """Return the same of trees whose owner is not told: of who fits each of them best."""
        return sum(map(min, zip(*map(self._wrong, truths), strict=True)))

    def _wrong(self, truth: Table) -> list[int]:
        """Return how many of the leaves of each tree hold other rows."""
        found = []
        for tree, told in self.leaves:
            at = Routes.of([tree]).apply(truth.X)[:, 0]
            known = told.leaf[told.exact]
            rows = (at[:, None] == known).sum(axis=0)
            positives = ((at[:, None] == known) & (truth.y == 1)[:, None]).sum(axis=0)
            off = (rows != told.n[told.exact]) | (positives != told.n_pos[told.exact])
            found.append(int(off.sum()))
        return found


@dataclass(frozen=True, eq=False)
class Shared:
    """All trees that somebody was shown, as one model, and who grew each of them.

    `scores`: Base score of each site that began a model, where it came with it.
    `starts`: What each tree that began a training started from, by its number.
    """

    model: ModelFile
    owners: tuple[str, ...]
    scores: dict[str, NDArray[np.float32]]
    starts: dict[int, float]

    @staticmethod
    def of(seen: Iterable[Record], who: str) -> Shared | None:
        """Put together what `who` saw; None if there was no model.

        The server and whoever saw the wire know who answered with which tree.
        """
        told, replies = list[Sent](), list[Sent]()
        for sent in Exchange(seen):
            if sent.model is not None:
                (told if sent.record.sender == SERVER else replies).append(sent)
        parts, known = list[ModelFile](), 0
        starts: dict[bytes, set[float]] = defaultdict(set)
        for sent in told + replies:
            for tree, start in _starts(sent):
                starts[_key(tree)].add(start)
        for sent in told:
            assert sent.model is not None
            if sent.first == known:  # else another site's copy
                parts.append(sent.model)
                known += len(trees_of(sent.model))
        owner: dict[bytes, str] = {}
        scores: dict[str, NDArray[np.float32]] = {}
        there = {_key(t) for part in parts for t in trees_of(part)}
        for sent in replies:
            assert sent.model is not None
            if not sent.first:  # else it is the score of who began the model
                scores.setdefault(sent.record.sender, sent.scores[0])
            trees = trees_of(sent.model)
            owner |= {_key(t): sent.record.sender for t in trees}
            if not {_key(t) for t in trees} & there and who != sent.record.sender:
                parts.append(sent.model)  # of the last round, which goes to nobody any more
        if not parts:
            return None
        model = joined(parts)
        names = tuple(owner.get(_key(t), SOMEBODY) for t in trees_of(model))
        begun = {t: starts[_key(tree)] for t, tree in enumerate(trees_of(model))}
        return Shared(model, names, scores, {t: s.pop() for t, s in begun.items() if len(s) == 1})


def _starts(sent: Sent) -> Iterator[tuple[Tree, float]]:
    """Yield trees that began a training, and the probability that each began with.

    So does the first tree of a site that had no model; the server's first model tells the base
    score of each if every part of it is one tree.
    """
    trees = () if sent.model is None else trees_of(sent.model)
    if sent.first or not trees or any(score.size > 1 for score in sent.scores):
        return
    if sent.record.sender != SERVER:
        yield trees[0], float(sent.scores[0][0])
    elif len(trees) == len(sent.scores):
        yield from zip(trees, (float(score[0]) for score in sent.scores), strict=True)


def _key(tree: Tree) -> bytes:
    return b"".join(a.tobytes() for a in (tree.feature, tree.threshold, tree.value))


def audited(capture: Iterable[Record], who: str) -> tuple[Shared, Audit] | None:
    """Audit all trees that somebody was shown; None if there were none.

    Whoever takes part knows eta and lambda: they are worked out of the trees of all.
    """
    everybody = Shared.of(capture, SERVER)
    seen = (r for r in capture if who in (THIRD, r.sender, *r.receivers))
    shared = everybody if who == SERVER else Shared.of(seen, who)
    if everybody is None or shared is None:
        return None
    found = audit(everybody.model, Known(starts=everybody.starts))
    if shared is everybody:
        return shared, found
    known = Known(starts=shared.starts)
    if found.settings is not None:
        eta, reg_lambda = found.settings.learning_rate, found.settings.reg_lambda
        known = replace(known, learning_rate=eta, reg_lambda=reg_lambda)
    return shared, audit(shared.model, known)


def model_readings(shared: Shared, found: Audit, who: str) -> Iterator[Reading]:
    """Yield what follows from models about everybody but who reads them."""
    firsts = dict[str, TreeExposure]()
    leaves: dict[str, list[tuple[Tree, TreeExposure]]] = defaultdict(list)
    cuts: dict[str, set[tuple[int, float]]] = defaultdict(set)
    for tree, told, owner in zip(trees_of(shared.model), found.trees, shared.owners, strict=True):
        if owner == who:
            continue
        firsts.setdefault(owner, told)
        if told.exact.any():
            leaves[owner].append((tree, told))
        inner = tree.feature >= 0
        pairs = zip(tree.feature[inner].tolist(), tree.threshold[inner].tolist(), strict=True)
        cuts[owner] |= set(pairs)
    for owner, first in firsts.items():
        score, whole = shared.scores.get(owner), bool(first.exact.all())
        rows, positives = int(first.n.sum()), int(first.n_pos.sum())
        if whole and owner != SOMEBODY:
            sure = not found.assumes
            yield Reading("number of rows", owner, ((None, None, rows, None),), sure)
            yield Reading("number of positives", owner, ((None, None, None, positives),), sure)
        if score is not None:
            same = whole and abs(float(score[0]) * rows - positives) < 1e-3 * max(positives, 1)
            yield Reading("mean label", owner, ((None, float(score[0]), None, None),), same)
    for owner, own in leaves.items():
        facts = tuple(
            (None, None, int(n), int(k))
            for _, told in own
            for n, k in zip(told.n[told.exact], told.n_pos[told.exact], strict=True)
        )
        what, sure = "leaves with their rows and positives", not found.assumes
        yield LeafRows(what, owner, facts, sure, tuple(own))
    for owner, pairs in cuts.items():
        told_cuts = tuple((f, value, None, None) for f, value in sorted(pairs))
        yield Reading("thresholds that are values of the party", owner, told_cuts, False)
