"""Facts that follow from models that sites shared, derived with `fedtrees.audit`."""

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
from fedtrees.capture.xgboost_training import SERVER
from fedtrees.core.schema import Table
from fedtrees.trees.boosted.forest import Tree
from fedtrees.trees.routing import Routes

#: An observer that sees all messages and is not a party.
THIRD = "third"
#: Owner of a tree whose client is not known.
SOMEBODY = "one of the others"


@dataclass(frozen=True)
class LeafRows(Reading):
    """Rows and positives of leaves, tree by tree."""

    leaves: tuple[tuple[Tree, TreeExposure], ...] = ()

    def wrong(self, truth: Table) -> int:
        """Return the number of leaves with wrong counts."""
        return sum(self._wrong(truth))

    def wrong_of_all(self, truths: Iterable[Table]) -> int:
        """Return the number of leaves with wrong counts if the owner of the trees is not known.

        Each tree is compared with the party whose rows fit it best.
        """
        return sum(map(min, zip(*map(self._wrong, truths), strict=True)))

    def _wrong(self, truth: Table) -> list[int]:
        """Return the number of leaves with wrong counts for each tree."""
        wrong_leaves = []
        for tree, exposure in self.leaves:
            at = Routes.of([tree]).apply(truth.X)[:, 0]
            leaves = exposure.leaf[exposure.exact]
            rows = (at[:, None] == leaves).sum(axis=0)
            positives = ((at[:, None] == leaves) & (truth.y == 1)[:, None]).sum(axis=0)
            off = (rows != exposure.n[exposure.exact]) | (
                positives != exposure.n_pos[exposure.exact]
            )
            wrong_leaves.append(int(off.sum()))
        return wrong_leaves


@dataclass(frozen=True, eq=False)
class Shared:
    """All trees that a party received, as one model, and the owner of each tree.

    Attributes
    ----------
    model : ModelFile
        The trees.
    owners : tuple of str
        The site that grew each tree, or a placeholder if it is not known.
    scores : dict of str to float32 array, shape (K,)
        Base score of each site that began a model, if it was sent.
    starts : dict of int to float
        For each tree that began a training, by its number, the probability from which it started.
    """

    model: ModelFile
    owners: tuple[str, ...]
    scores: dict[str, NDArray[np.float32]]
    starts: dict[int, float]

    @staticmethod
    def of(seen: Iterable[Record], who: str) -> Shared | None:
        """Combine the models that an observer saw. Return None if there were no models.

        Only the server and an observer of the wire know which site replied with which tree.
        """
        downloads, replies = list[Sent](), list[Sent]()
        for sent in Exchange(seen):
            if sent.model is not None:
                (downloads if sent.record.sender == SERVER else replies).append(sent)
        parts, n_trees = list[ModelFile](), 0
        starts: dict[bytes, set[float]] = defaultdict(set)
        for sent in downloads + replies:
            for tree, start in _starts(sent):
                starts[_key(tree)].add(start)
        # The models to all sites contain the same trees. Each tree is used once.
        for sent in downloads:
            assert sent.model is not None
            if sent.first == n_trees:  # otherwise it is the copy for another site
                parts.append(sent.model)
                n_trees += len(trees_of(sent.model))
        owner: dict[bytes, str] = {}
        scores: dict[str, NDArray[np.float32]] = {}
        received_keys = {_key(t) for part in parts for t in trees_of(part)}
        for sent in replies:
            assert sent.model is not None
            if not sent.first:  # otherwise it is the base score of the site that began the model
                scores.setdefault(sent.record.sender, sent.scores[0])
            trees = trees_of(sent.model)
            owner |= {_key(t): sent.record.sender for t in trees}
            if not {_key(t) for t in trees} & received_keys and who != sent.record.sender:
                parts.append(sent.model)  # trees of the last round, which no site receives
        if not parts:
            return None
        model = joined(parts)
        names = tuple(owner.get(_key(t), SOMEBODY) for t in trees_of(model))
        begun = {t: starts[_key(tree)] for t, tree in enumerate(trees_of(model))}
        return Shared(model, names, scores, {t: s.pop() for t, s in begun.items() if len(s) == 1})


def _starts(sent: Sent) -> Iterator[tuple[Tree, float]]:
    """Yield trees that began a training, with the probability from which each of them started.

    These are the first trees of sites without a model. The server's first model contains the base
    score of each tree if every part of it is one tree.
    """
    trees = () if sent.model is None else trees_of(sent.model)
    if sent.first or not trees or any(score.size > 1 for score in sent.scores):
        return
    if sent.record.sender != SERVER:
        yield trees[0], float(sent.scores[0][0])
    elif len(trees) == len(sent.scores):
        yield from zip(trees, (float(score[0]) for score in sent.scores), strict=True)


def _key(tree: Tree) -> bytes:
    """Return a key that distinguishes a tree from all different trees."""
    return b"".join(a.tobytes() for a in (tree.feature, tree.threshold, tree.value))


def audited(capture: Iterable[Record], who: str) -> tuple[Shared, Audit] | None:
    """Audit all trees that an observer saw. Return None if there were none.

    Every participant knows eta and lambda. They are therefore inferred from the trees of all sites.
    """
    everybody = Shared.of(capture, SERVER)
    seen = (r for r in capture if who in (THIRD, r.sender, *r.receivers))
    shared = everybody if who == SERVER else Shared.of(seen, who)
    if everybody is None or shared is None:
        return None
    result = audit(everybody.model, Known(starts=everybody.starts))
    if shared is everybody:
        return shared, result
    knowledge = Known(starts=shared.starts)
    if result.settings is not None:
        eta, reg_lambda = result.settings.learning_rate, result.settings.reg_lambda
        knowledge = replace(knowledge, learning_rate=eta, reg_lambda=reg_lambda)
    return shared, audit(shared.model, knowledge)


def model_readings(shared: Shared, audited: Audit, who: str) -> Iterator[Reading]:
    """Yield the facts that follow from models about all parties except their reader.

    Parameters
    ----------
    shared : Shared
        The trees that the reader saw.
    audited : Audit
        Audit of these trees.
    who : str
        The reader.

    Yields
    ------
    reading : Reading
    """
    firsts = dict[str, TreeExposure]()
    leaves: dict[str, list[tuple[Tree, TreeExposure]]] = defaultdict(list)
    cuts: dict[str, set[tuple[int, float]]] = defaultdict(set)
    for tree, exposure, owner in zip(
        trees_of(shared.model), audited.trees, shared.owners, strict=True
    ):
        if owner == who:
            continue
        firsts.setdefault(owner, exposure)
        if exposure.exact.any():
            leaves[owner].append((tree, exposure))
        inner = tree.feature >= 0
        pairs = zip(tree.feature[inner].tolist(), tree.threshold[inner].tolist(), strict=True)
        cuts[owner] |= set(pairs)
    for owner, first in firsts.items():
        score, complete = shared.scores.get(owner), bool(first.exact.all())
        rows, positives = int(first.n.sum()), int(first.n_pos.sum())
        if complete and owner != SOMEBODY:
            sure = not audited.assumes
            yield Reading("number of rows", owner, ((None, None, rows, None),), sure)
            yield Reading("number of positives", owner, ((None, None, None, positives),), sure)
        if score is not None:
            same = complete and abs(float(score[0]) * rows - positives) < 1e-3 * max(positives, 1)
            yield Reading("mean label", owner, ((None, float(score[0]), None, None),), same)
    for owner, leaves_of_owner in leaves.items():
        facts = tuple(
            (None, None, int(n), int(k))
            for _, exposure in leaves_of_owner
            for n, k in zip(exposure.n[exposure.exact], exposure.n_pos[exposure.exact], strict=True)
        )
        what, sure = "leaves with their rows and positives", not audited.assumes
        yield LeafRows(what, owner, facts, sure, tuple(leaves_of_owner))
    for owner, pairs in cuts.items():
        told_cuts = tuple((f, value, None, None) for f, value in sorted(pairs))
        yield Reading("thresholds that are values of the party", owner, told_cuts, False)
