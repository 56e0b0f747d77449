"""The attack `lattice`: certified class counts of leaves from the sums of a view."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtrees.attacks.clients.per_client import observe_clients, sum_leaf_counts
from fedtrees.attacks.counts.interval_counts import first_round, readable
from fedtrees.attacks.exact_decoding.decode import Decoded, count_by_hessians, decode
from fedtrees.attacks.exact_decoding.integer_sums import base_margin_of, certain_counts
from fedtrees.attacks.observations.applicability import classes_of_leaves, no_trees, shows
from fedtrees.attacks.observations.boosting import BoostingObservations
from fedtrees.attacks.observations.reading import read_boosting
from fedtrees.attacks.observations.replay import law_of_sums, trees_grown_locally
from fedtrees.core.attack import Attack
from fedtrees.core.claims import Guess, LeafCounts
from fedtrees.core.errors import check_known, check_share, check_whole
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.horizontal import GlobalHistogram, Histogram


@register.attack("lattice")
@dataclass(frozen=True, kw_only=True)
class Lattice(Attack):
    """Certify the class counts of leaves, by solving exact leaf sums as subset-sum problems.

    Which statistics are visible decides the method:

    - Exact sums (not from a paper): rows are followed through the trees as far as the sums
      determine their leaves (`decode`). If every leaf of a tree is solved, the boxes of the rows
      follow, from which `joint` reconstructs rows. If rounds use samples of the rows, only the
      first tree is solved, and its counts refer to the sample.
    - Rounded or suppressed sums: they bound the counts of the first round
      (`fedtrees.attacks.counts.interval_counts`). Counts with one possible value are certified.
    - Leaf values: counts of the first tree with a single possible value are certified.
    - Numeric targets: rows are counted by their hessians, which are 1, in the leaves of all trees.

    Parameters
    ----------
    list_bits : int
        Contents of a leaf are searched in two lists of up to 2^list_bits entries (4 to 24).
    doubt : float
        Largest odds against the contents of a leaf that is still certified. The diagnostic
        ``false_expected`` is the sum of the odds over all certified leaves.
    max_trees : int or None
        Number of trees to use at most.
    steps : int or None
        Limit on the list entries of the search, None for no limit. The diagnostic ``stopped_early``
        is 1 if the limit was reached.
    base_score : {"known", "unknown"}
        "unknown" ignores the announced base score and infers it from the first tree.
    """

    claims = (LeafCounts,)

    supports_regression: ClassVar[bool] = True

    list_bits: int = 18
    doubt: float = 1e-3
    max_trees: int | None = None
    steps: int | None = None
    base_score: str = "known"

    def __post_init__(self) -> None:
        check_whole("list_bits", self.list_bits, 4, 24)
        check_share("doubt", self.doubt)
        for name in ("max_trees", "steps"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 0)
        check_known("base_score", self.base_score, ("known", "unknown"))

    def inapplicable(self, view: View) -> Reason | None:
        """Return a reason if the view has no boosted trees with one gradient per row, else None.

        Trees that clients grow on their local data are left to `timberstrike`. More than two
        classes are supported only with histograms.
        """
        if trees_grown_locally(view):
            return Reason("trees-of-one", use="timberstrike")
        if (classes_of_leaves(view) or 2) > 2 and not shows(view, Histogram, GlobalHistogram):
            return Reason("several-gradients")
        return no_trees(view, supports_regression=True)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Certify class counts of leaves, of as many trees as possible.

        Parameters
        ----------
        view : View
            Messages of the training.
        rng : numpy.random.Generator
            Not used. The attack is deterministic.

        Returns
        -------
        guess : Guess
            `LeafCounts` of the victims, all certified, with diagnostics. The guess is empty if no
            leaf is certified.
        """
        seen, law = read_boosting(view), law_of_sums(view)
        if seen is None or view.weighted:
            why = Reason("weighted-sums" if view.weighted else "no-start-or-rounds")
            return Guess.none(self.inapplicable(view) or why, {"trees_certified": 0.0})
        numbers = seen.targets is not None
        if seen.observed.level == "values" and not numbers and readable(view, seen):
            return _of_values(view, seen)
        if not numbers and (seen.outputs > 1 or not (law is None or law.additive)):
            return _counts_from_bounds(view)
        evidence = seen.at_most("statistics")
        each = [v.evidence for v in observe_clients(view) if not v.blocks] or [evidence]
        decoded = [self._decode(one, view) for one in each]
        if len(decoded) == 1:
            counts = _certify(sum_leaf_counts(decoded[0].leaf_counts))
            return Guess.of(counts, decoded[0].notes, otherwise=self._why_none(decoded[0].notes))
        notes: dict[str, float] = {}
        # Numbers of leaves are added up over clients. Numbers of trees are those of the client with
        # the most.
        for key in {key: None for one in decoded for key in one.notes}:
            values = [one.notes.get(key, 0.0) for one in decoded]
            several = not key.startswith(("trees", "stopped", "least"))
            notes[key] = sum(values) if several else max(values)
        counts = _certify(sum_leaf_counts([c for one in decoded for c in one.leaf_counts]))
        return Guess.of(counts, notes, otherwise=self._why_none(notes))

    def _why_none(self, notes: Mapping[str, float]) -> Reason:
        """Return why the decoder certified no leaf: its limit, or the sums themselves."""
        if notes.get("stopped_early") and self.steps is not None:
            return Reason("search-limit", steps=self.steps)
        return Reason("sums-not-exact")

    def _decode(self, evidence: BoostingObservations, view: View) -> Decoded:
        """Solve the leaf sums of one client, or of all clients together."""
        if self.max_trees is not None:
            evidence = evidence.rounds(self.max_trees)
        if evidence.targets is not None:
            own_rows = Table.empty(view.schema) if view.rows is None else view.rows
            return count_by_hessians(evidence, own_rows, self.doubt)
        if self.base_score == "unknown" and evidence.trees:
            base = base_margin_of(evidence)
            if base is None:
                return Decoded()
            evidence = evidence.change(base_margin=base)
        parts = (evidence, view.rows, view.schema, self.list_bits, self.doubt)
        return decode(*parts, steps=self.steps)


def _of_values(view: View, evidence: BoostingObservations) -> Guess:
    """Return the counts of the first tree that follow from leaf values."""
    own_rows = Table.empty(view.schema) if view.rows is None else view.rows
    certain, leaves = certain_counts(evidence, own_rows), len(evidence.trees[0].leaves)
    n_certain = 0 if certain is None else len(certain.leaf)
    notes = {
        "trees_certified": float(n_certain == leaves),
        "leaves_certified": float(n_certain),
        "leaves_open": float(leaves - n_certain),
    }
    counts = _certify([] if certain is None else [certain])
    return Guess.of(counts, notes, otherwise=Reason("leaf-values-ambiguous"))


def _counts_from_bounds(view: View) -> Guess:
    """Return the counts of the first round that follow from bounds on the sums."""
    trees = first_round(view) or []
    claims = [tree.leaf_counts(t) for t, tree in enumerate(trees)]
    certain = sum(int(tree.certain.sum()) for tree in trees)
    notes = {
        "trees_certified": sum(bool(tree.certain.all()) for tree in trees),
        "leaves_certified": certain,
        "leaves_open": sum(len(tree.certain) for tree in trees) - certain,
    }
    counts = _certify(claim for claim in claims if claim is not None)
    named = {name: float(value) for name, value in notes.items()}
    return Guess.of(counts, named, otherwise=Reason("bounds-leave-a-choice"))


def _certify(counts: Iterable[LeafCounts]) -> list[LeafCounts]:
    """Return leaf counts that are marked as certified. This attack returns no other counts."""
    return [replace(c, certified=np.ones(len(c.leaf), dtype=np.bool_)) for c in counts]
