"""Metric `leaf-counts`: inferred number of rows of each class in the leaves of trees.

Attacks infer the counts from leaf values, hessian sums or histograms. This module counts the true
rows in the leaves, scores the claims, and computes the blind baseline.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.claims import Claim, LeafCounts
from fedtrees.core.errors import DataError
from fedtrees.core.messages import Trait
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.core.schema import Table
from fedtrees.messages.horizontal import ClientModels, ClientTrees
from fedtrees.metrics.metric import Case, Metric, Score
from fedtrees.trees.routing import Routes


@dataclass(frozen=True)
class LeafCountScores:
    """Scores of the inferred counts of one or several trees.

    Attributes
    ----------
    leaf_counts_exact : float
        Share of the leaves in which the counts of all classes are exact.
    leaf_mass_exact : float
        Share of the rows that are in such leaves.
    count_error, count1_error : float
        Mean absolute error per leaf of the number of rows, and of the number of rows of the last
        class.
    leaves : int
        Number of scored leaves.
    """

    leaf_counts_exact: float
    leaf_mass_exact: float
    count_error: float
    count1_error: float
    leaves: int


def true_leaf_counts(
    tree: int,
    nodes: NDArray[np.integer],
    y: NDArray[Any],
    leaves: NDArray[np.integer],
    classes: int = 2,
) -> LeafCounts:
    """Count the rows of each class in every leaf.

    Parameters
    ----------
    tree : int
        Index of the tree in the model.
    nodes : int array, shape (n,)
        Leaf of every row, one column of ``Forest.apply``.
    y : int or bool array, shape (n,)
        Class codes. For a tree of one class in a multi-class boosted model, whether a row belongs
        to this class.
    leaves : int array, shape (J,)
        Node numbers of all leaves of the tree (``Tree.leaves``), including empty ones.
    classes : int
        Number of classes, K.

    Returns
    -------
    counts : LeafCounts
        Counts of shape (J, K), with the leaves in increasing order.

    Raises
    ------
    DataError
        If a row is in a node that is not a leaf.

    Examples
    --------
    >>> true_leaf_counts(0, np.array([1, 2, 2]), np.array([0, 1, 0]), np.array([1, 2])).counts
    array([[1, 0],
           [1, 1]])
    """
    leaves = np.unique(leaves)
    position = np.searchsorted(leaves, nodes)
    if len(nodes) and (position.max() >= len(leaves) or (leaves[position] != nodes).any()):
        raise DataError(f"tree {tree}: rows lie in nodes that are not among its leaves")
    # Number the cells (leaf, class) in C order, so that one pass counts all of them.
    cells = position * classes + y.astype(np.int64)
    counts = np.bincount(cells, minlength=len(leaves) * classes).reshape(len(leaves), classes)
    return LeafCounts(tree, leaves.astype(np.intp), counts.astype(np.int64))


def blind_leaf_counts(local_counts: LeafCounts, n: int) -> LeafCounts:
    """Scale the leaf counts of the adversary's local rows to n rows, and round them.

    Parameters
    ----------
    local_counts : LeafCounts
        Counts of the local rows of the principals, routed through the same tree.
    n : int
        Number of rows of the tree.

    Returns
    -------
    LeafCounts
        Rounded counts, with halves rounded to even. If the principals have no rows, every leaf and
        class gets the same share.
    """
    total = local_counts.counts.sum()
    if total == 0:
        even = np.full(local_counts.counts.shape, n / local_counts.counts.size)
        return LeafCounts(local_counts.tree, local_counts.leaf, np.rint(even).astype(np.int64))
    return LeafCounts(
        local_counts.tree,
        local_counts.leaf,
        np.rint(local_counts.counts * (n / total)).astype(np.int64),
    )


def score_leaf_counts(
    guesses: Sequence[LeafCounts], truths: Sequence[LeafCounts]
) -> LeafCountScores:
    """Compare inferred with true counts, over all leaves of the given true trees together.

    Parameters
    ----------
    guesses : sequence of LeafCounts
        Inferred counts in any order. A missing leaf counts as empty in the errors and is never
        exact. Trees and leaves that are not in `truths` are ignored.
    truths : sequence of LeafCounts
        True counts from `true_leaf_counts`.

    Returns
    -------
    scores : LeafCountScores
        Scores over all leaves.

    Raises
    ------
    DataError
        If there are no true leaves, or two guesses about one tree.
    """
    if sum(len(t.leaf) for t in truths) == 0:
        raise DataError("no true leaf counts to score against")
    by_tree = {guess.tree: guess for guess in guesses}
    if len(by_tree) != len(guesses):
        raise DataError("two guesses of leaf counts for one tree")
    exact, mass, error, error1 = [], [], [], []
    for truth in truths:
        counts, has_claim = _align_leaves(by_tree.get(truth.tree), truth)
        error_of_counts = counts - truth.counts
        # An empty leaf without a claim would otherwise count as exact.
        exact.append(has_claim & ~error_of_counts.any(axis=1))
        mass.append(truth.counts.sum(axis=1))
        error.append(np.abs(error_of_counts.sum(axis=1)))
        error1.append(np.abs(error_of_counts[:, -1]))
    right, rows = np.concatenate(exact), np.concatenate(mass)
    return LeafCountScores(
        leaf_counts_exact=float(right.mean()),
        leaf_mass_exact=float(rows[right].sum() / rows.sum()) if rows.sum() else 0.0,
        count_error=float(np.concatenate(error).mean()),
        count1_error=float(np.concatenate(error1).mean()),
        leaves=len(right),
    )


def share_right(guesses: Sequence[LeafCounts], truths: Sequence[LeafCounts]) -> float:
    """Return the share of the claimed leaves in which the counts of all classes are exact.

    For an attack that only returns counts it is certain of, the share should be 1.

    Parameters
    ----------
    guesses : sequence of LeafCounts
        Claimed counts, possibly of some leaves only.
    truths : sequence of LeafCounts
        True counts of all leaves of the trees.

    Returns
    -------
    float
        From 0 to 1.

    Raises
    ------
    DataError
        If no leaf is claimed, or a claimed tree or leaf does not exist.
    """
    by_tree = {truth.tree: truth for truth in truths}
    right: list[bool] = []
    for guess in guesses:
        truth = by_tree.get(guess.tree)
        if truth is None or not np.isin(guess.leaf, truth.leaf).all():
            raise DataError(f"counts of leaves that tree {guess.tree} has not")
        counts, _ = _align_leaves(truth, guess)
        right += (counts == guess.counts).all(axis=1).tolist()
    if not right:
        raise DataError("no leaf counts to score")
    return float(np.mean(right))


def _align_leaves(
    guess: LeafCounts | None, truth: LeafCounts
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return inferred counts in the order of the true leaves, and which leaves have a claim."""
    counts, has_claim = np.zeros_like(truth.counts), np.zeros(len(truth.leaf), dtype=bool)
    if guess is not None:
        where = {int(leaf): i for i, leaf in enumerate(guess.leaf)}
        for j, leaf in enumerate(truth.leaf):
            i = where.get(int(leaf))
            if i is not None:
                counts[j], has_claim[j] = guess.counts[i], True
    return counts, has_claim


@dataclass(frozen=True, eq=False)
class GrownTrees:
    """True leaf counts of the scored trees.

    Attributes
    ----------
    first : tuple of LeafCounts
        Counts of the trees of the first round, or of the first round of every victim if clients
        train trees locally.
    rows : dict of int to int
        Number of the victims' rows on which each of these trees was trained.
    everywhere : dict of int to LeafCounts
        Counts of all trees. Empty unless there is one tree per round, trained on the rows of all
        parties, and at most two classes.
    """

    first: tuple[LeafCounts, ...]
    rows: dict[int, int]
    everywhere: dict[int, LeafCounts]


@register.metric("leaf-counts")
class LeafCountMetric(Metric[GrownTrees]):
    """Share of leaves whose class counts are inferred exactly, and share of rows in these leaves.

    The scored trees are those of the first round (in a random forest, the first tree). If clients
    train trees locally, they are the trees of the first round of every victim, with its rows. Only
    the victims' rows that a tree was trained on are counted, which is a sample under subsampling.
    In a boosted model with more than two classes, every tree counts its class against the rest. For
    a numeric target, all rows count as one class.

    The blind baseline is the best of three guesses: the counts of the adversary's local rows,
    scaled to the number of training rows of the tree; all leaves empty; and all rows in one leaf.

    If every round trains one tree on the rows of all parties, ``leaf_counts_right`` is the share of
    the claimed leaves, of all trees, whose counts are exact.
    """

    of: ClassVar[type[Claim]] = LeafCounts
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("leaf_mass_exact", "rows in leaves with exact counts", "share of rows",
                klass="group", slot="certain", short="rows in exact leaves",
                head="leaf counts", severity=150,
                phrase="count every class exactly in leaves that contain {} of the rows",
                required=True),
        Measure("leaf_counts_exact", "leaves with exact counts", "share of leaves", klass="group",
                severity=160, phrase="count every class exactly in {} of the leaves",
                covered_by=("leaf_mass_exact",), required=True),
        Measure("leaf_counts_right", "returned leaf counts that are exact", "share of returned",
                klass="group"),
        Measure("count_error", "error of rows per leaf", "rows", 0.0, "group"),
        Measure("count1_error", "error of rows of the last class per leaf", "rows", 0.0, "group"),
    )  # fmt: skip

    def truth(self, case: Case) -> GrownTrees | None:
        """Return the true counts of the scored trees.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        GrownTrees or None
            None if no victim has complete rows, or the model has no trees of the victims' rows.
        """
        if case.victims_rows is None or not getattr(case.model, "trees", ()):
            return None
        grown = _scored_trees(case)
        if not grown:
            return None
        # Rows that the round did not use are not counted.
        first = tuple(_count(case, t, rows) for t, rows in grown.items())
        # A forest with several classes has no rounds.
        joint = (
            not list(_first_blocks(case)) and _outputs(case) == 1 and len(case.schema.classes) < 3
        )
        all_trees = range(len(case.model.trees)) if joint else ()
        everywhere = {t: _count(case, t, _in_round(case, t)) for t in all_trees}
        return GrownTrees(first, {t: len(rows) for t, rows in grown.items()}, everywhere)

    def refuses(self, claims: Sequence[LeafCounts], case: Case) -> str | None:
        """Refuse unknown trees, a wrong number of classes, and two claims about one tree.

        Parameters
        ----------
        claims : sequence of LeafCounts
            Claimed counts, one claim per tree.
        case : Case
            Local data of all parties and the training.

        Returns
        -------
        str or None
            The first violated rule, as a part of a sentence. None if the claims can be scored.
        """
        named = [c.tree for c in claims]
        if len(set(named)) != len(named):
            return "counts of one tree were claimed twice"
        if case.model is None or not hasattr(case.model, "trees"):
            return None
        k = _classes(case)
        for claim in claims:
            if not 0 <= claim.tree < len(case.model.trees):
                return f"counts of tree {claim.tree}; the model has {len(case.model.trees)}"
            if claim.counts.shape[1] != k:
                return f"counts of {claim.counts.shape[1]} classes; a leaf here has {k}"
        return None

    def blind(self, case: Case, truth: GrownTrees) -> dict[str, Sequence[Claim]]:
        """Return guesses of the counts that need no message.

        ``own-counts`` scales the counts of the adversary's local rows. ``empty`` claims that no
        leaf contains a victim's row, which is right for most leaves of a tree whose splits ignore
        the data. ``all-in-one`` claims that one leaf contains all of the victims' rows, which is
        right if the tests of such a tree do not separate them. It is granted the number of rows of
        each class, and the leaf that contains most rows.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.
        truth : GrownTrees
            Result of `truth`.

        Returns
        -------
        dict of str to sequence of Claim
            Counts of all scored trees by the name of the guess.
        """
        adversary_rows = case.blind_view().rows
        rows = Table.empty(case.schema) if adversary_rows is None else adversary_rows
        counts = [_count(case, t, rows) for t in truth.rows]
        return {
            "own-counts": [blind_leaf_counts(c, truth.rows[c.tree]) for c in counts],
            "empty": [LeafCounts(c.tree, c.leaf, np.zeros_like(c.counts)) for c in counts],
            "all-in-one": [_all_in_one(c) for c in truth.first],
        }

    def line(
        self, case: Case, truth: GrownTrees, measured: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the blind baseline, without one for ``leaf_counts_right``.

        The blind guesses claim all leaves, while an attack selects the leaves that it is certain
        of.

        Parameters
        ----------
        case : Case
            Local data of all parties and the training.
        truth : GrownTrees
            Result of `truth`.
        measured : mapping of str to float
            Baselines that were measured before training for this federation and threat model.

        Returns
        -------
        dict of str to float
            Baselines by key.
        """
        baseline = super().line(case, truth, measured)
        # The blind guesses claim all leaves, while an attack selects the leaves that it is certain
        # of.
        baseline.pop("leaf_counts_right", None)
        return baseline

    def score(self, claims: Sequence[LeafCounts], truth: GrownTrees) -> list[Score]:
        """Score the counts of the first trees, and ``leaf_counts_right`` if it is defined.

        Parameters
        ----------
        claims : sequence of LeafCounts
            Claimed counts, one claim per tree.
        truth : GrownTrees
            Result of `truth`.

        Returns
        -------
        list of Score
            One per measure.
        """
        first = score_leaf_counts([c for c in claims if c.tree in truth.rows], truth.first)
        keys = ("leaf_counts_exact", "leaf_mass_exact", "count_error", "count1_error")
        scores = [Score(key, getattr(first, key)) for key in keys]
        if truth.everywhere:
            right = share_right(claims, [truth.everywhere[c.tree] for c in claims])
            scores.append(Score("leaf_counts_right", right))
        return scores


def _all_in_one(truth: LeafCounts) -> LeafCounts:
    """Return counts that put all rows into the leaf that contains most of them."""
    counts = np.zeros_like(truth.counts)
    counts[truth.counts.sum(axis=1).argmax()] = truth.counts.sum(axis=0)
    return LeafCounts(truth.tree, truth.leaf, counts)


def _outputs(case: Case) -> int:
    """Return the number of trees per round, which is K in a boosted model of K > 2 classes."""
    objective = getattr(case.model, "objective", None)
    return 1 if objective is None else int(objective.n_outputs)


def _classes(case: Case) -> int:
    """Return the number of classes that a leaf counts: two in a boosted tree, one for numbers."""
    if not case.schema.classes:
        return 1
    return 2 if hasattr(case.model, "objective") else len(case.schema.classes)


def _count(case: Case, tree: int, rows: Table) -> LeafCounts:
    """Count rows of each class in the leaves of a tree of the model."""
    leaves = Routes.of([case.model.trees[tree]]).apply(rows.X)[:, 0]
    outputs, classes = _outputs(case), _classes(case)
    # Tree number t of a multi-class model belongs to class t mod K.
    y = rows.y if outputs == 1 else rows.y == tree % outputs
    y = y if classes > 1 else np.zeros(len(rows), dtype=np.int64)
    return true_leaf_counts(tree, leaves, y, case.model.trees[tree].leaves, classes)


def _scored_trees(case: Case) -> dict[int, Table]:
    """Return the scored trees by their index in the model, with the victims' training rows."""
    outputs, shared = _outputs(case), list(_first_blocks(case))
    if not shared:
        return dict.fromkeys(range(outputs), _in_round(case, 0))
    return {
        first + k: case.rows_in(sender, round)
        for sender, first, round in shared
        if sender not in case.principals
        for k in range(outputs)
    }


def _in_round(case: Case, tree: int) -> Table:
    """Return the victims' rows that the round of a jointly trained tree used."""
    rows = case.victims_in(tree // _outputs(case))
    assert rows is not None
    return rows


def _first_blocks(case: Case) -> Iterator[tuple[str, int, int]]:
    """Yield clients that train trees locally, with the index of their first tree and its round.

    The index is that in the model, and the round is counted by the client.
    """
    # Protocols record local trees in three ways: one message with all clients' models, pooled
    # forests in the order of the messages, or replies whose trees are searched in the model.
    replies: dict[str, ClientTrees] = {}
    clients, pooled = list(case.local_data), 0
    for d in case.transcript or ():
        if isinstance(d.message, ClientModels):
            starts = np.cumsum(d.message.trees) - d.message.trees
            owners = (clients[o] for o in d.message.owner)
            yield from ((o, int(i), 0) for o, i in zip(owners, starts, strict=True))
            return
        if isinstance(d.message, ClientTrees) and len(d.message.sizes):
            replies.setdefault(d.sender, d.message)
        if Trait.POOLED in d.message.traits:
            n_trees = len(getattr(d.message, "sizes"))  # noqa: B009 - a forest, of whatever type
            yield from [(d.sender, pooled, 0)] * bool(n_trees)
            pooled += n_trees
    trees, taken = case.model.trees, set[int]()
    for sender, reply in replies.items():
        # All replies contain the same number of trees, so that a reply starts at a multiple of it.
        places = (i for i in range(0, len(trees), len(reply.sizes)) if i not in taken)
        number = next((i for i in places if _matches_model(reply, trees, i)), None)
        if number is not None:
            taken.add(number)
            yield sender, number, reply.round * len(reply.sizes) // _outputs(case)


def _matches_model(reply: ClientTrees, trees: Sequence[Any], number: int) -> bool:
    """Return whether the trees of a reply are those of the model from this index on."""
    candidates = trees[number : number + len(reply.sizes)]
    same = [len(t) for t in candidates] == reply.sizes.tolist()
    contents = [("threshold", reply.threshold), ("value", reply.value), ("h", reply.sum_hessian)]
    return same and all(
        sent is None or np.array_equal(np.concatenate([getattr(t, name) for t in candidates]), sent)
        for name, sent in contents
    )
