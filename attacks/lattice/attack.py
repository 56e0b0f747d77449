"""Certified counts as an attack on a view."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedtrees.attacks.evidence.boosted import Evidence
from fedtrees.attacks.evidence.clients.victims import added_up, victims_of
from fedtrees.attacks.evidence.laws import law_of_sums
from fedtrees.attacks.evidence.readable import classes_of_leaves, no_trees, shows
from fedtrees.attacks.evidence.readback.claims import first_round
from fedtrees.attacks.evidence.readback.read import readable
from fedtrees.attacks.evidence.replay import grown_alone
from fedtrees.attacks.evidence.view import evidence_of
from fedtrees.attacks.lattice.decode import Decoded, counted, decode
from fedtrees.attacks.lattice.exact_sums import base_margin_of
from fedtrees.attacks.lattice.leaf_values import certain_counts
from fedtrees.core.attack import Attack
from fedtrees.core.errors import UsageError
from fedtrees.core.guess import Guess, LeafCounts
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.schema import Table
from fedtrees.core.view import View
from fedtrees.messages.boosting import GlobalHistogram, Histogram


@register.attack("lattice")
@dataclass(frozen=True, kw_only=True)
class Lattice(Attack):
    """Certify how many rows of each class every leaf holds, from leaf sums.

    Exact ones: rows are followed through all trees as far as their sums determine where they went
    (beyond the papers). Only what is beyond doubt is returned; where rows' whole paths are known,
    so are the boxes they lie in, which `joint` turns into rows. Where every round draws a sample
    of the rows, the first tree alone is read, and its counts are of that sample. Sums that are
    rounded or suppressed still bound the counts of the first round
    (`fedtrees.attacks.evidence.readback`): those that they leave no choice are returned. So are
    those of the first tree that leaf values alone leave none.

    Rows with numeric targets are counted in the leaves of all trees by their hessians, which are 1;
    no search follows them.
    """

    claims = (LeafCounts,)

    numbers: ClassVar[bool] = True

    list_bits: int = 18  # contents of a leaf are searched in two lists of up to 2^list_bits entries
    # greatest odds against a leaf's contents that are still certified. The note ``false_expected``
    # is their sum.
    doubt: float = 1e-3
    max_trees: int | None = None  # read at most this many trees
    # list entries after which the search stops early, None for no limit; the note ``stopped_early``
    # says whether it did
    steps: int | None = None
    # {"known", "unknown"}: "unknown" ignores the announced start of boosting and finds it from the
    # first tree
    base_score: str = "known"

    def __post_init__(self) -> None:
        if not 4 <= self.list_bits <= 24:
            raise UsageError(f"list_bits {self.list_bits} must be from 4 to 24")
        if not 0 < self.doubt < 1:
            raise UsageError(f"doubt {self.doubt} must be between 0 and 1")
        if self.max_trees is not None and self.max_trees < 0:
            raise UsageError(f"max_trees {self.max_trees} must be at least 0")
        if self.steps is not None and self.steps < 0:
            raise UsageError(f"steps {self.steps} must be at least 0")
        if self.base_score not in ("known", "unknown"):
            raise UsageError(f"base_score {self.base_score!r}: give 'known' or 'unknown'")

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no boosted trees of everybody's rows, None if they do."""
        if grown_alone(view):
            return Reason("trees-of-one", use="timberstrike")
        if (classes_of_leaves(view) or 2) > 2 and not shows(view, Histogram, GlobalHistogram):
            return Reason("several-gradients")
        return no_trees(view, numbers=True)

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return certified class counts of leaves, of as many trees as possible."""
        seen, law = evidence_of(view), law_of_sums(view)
        if seen is None or view.weighted:
            why = Reason("weighted-sums" if view.weighted else "no-start-or-rounds")
            return Guess.none(self.inapplicable(view) or why, {"trees_certified": 0.0})
        numbers = seen.targets is not None
        if seen.level == "values" and not numbers and readable(view, seen):
            return _of_values(view, seen)
        if not numbers and (seen.outputs > 1 or not (law is None or law.additive)):
            return _bounded(view)
        evidence = replace(seen, level="statistics", histograms=None)
        each = [v.evidence for v in victims_of(view) if not v.blocks] or [evidence]
        decoded = [self._decode(one, view) for one in each]
        if len(decoded) == 1:
            counts = _certified(added_up(decoded[0].leaf_counts))
            return Guess.of(counts, decoded[0].notes, otherwise=self._why_none(decoded[0].notes))
        notes: dict[str, float] = {}
        for key in {key: None for one in decoded for key in one.notes}:
            values = [one.notes.get(key, 0.0) for one in decoded]
            several = not key.startswith(("trees", "stopped", "least"))
            notes[key] = sum(values) if several else max(values)
        counts = _certified(added_up([c for one in decoded for c in one.leaf_counts]))
        return Guess.of(counts, notes, otherwise=self._why_none(notes))

    def _why_none(self, notes: Mapping[str, float]) -> Reason:
        """Return why the decoder certified no leaf: its limit, or the sums themselves."""
        if notes.get("stopped_early") and self.steps is not None:
            return Reason("search-limit", steps=self.steps)
        return Reason("sums-not-exact")

    def _decode(self, evidence: Evidence, view: View) -> Decoded:
        """Follow the rows of one client, or of all together."""
        if self.max_trees is not None:
            evidence = evidence.rounds(self.max_trees)
        if evidence.targets is not None:
            own_rows = Table.empty(view.schema) if view.rows is None else view.rows
            return counted(evidence, own_rows, self.doubt)
        if self.base_score == "unknown" and evidence.trees:
            base = base_margin_of(evidence)
            if base is None:
                return Decoded()
            evidence = replace(evidence, base_margin=base)
        parts = (evidence, view.rows, view.schema, self.list_bits, self.doubt)
        return decode(*parts, steps=self.steps)


def _of_values(view: View, evidence: Evidence) -> Guess:
    """Return counts of the first tree that leaf values alone make certain."""
    own_rows = Table.empty(view.schema) if view.rows is None else view.rows
    certain, leaves = certain_counts(evidence, own_rows), len(evidence.trees[0].leaves)
    n_certain = 0 if certain is None else len(certain.leaf)
    notes = {
        "trees_certified": float(n_certain == leaves),
        "leaves_certified": float(n_certain),
        "leaves_open": float(leaves - n_certain),
    }
    counts = _certified([] if certain is None else [certain])
    return Guess.of(counts, notes, otherwise=Reason("leaf-values-ambiguous"))


def _bounded(view: View) -> Guess:
    """Return what sums that are known up to bounds leave certain: counts of the first round."""
    trees = first_round(view) or []
    claims = [tree.leaf_counts(t) for t, tree in enumerate(trees)]
    certain = sum(int(tree.certain.sum()) for tree in trees)
    notes = {
        "trees_certified": sum(bool(tree.certain.all()) for tree in trees),
        "leaves_certified": certain,
        "leaves_open": sum(len(tree.certain) for tree in trees) - certain,
    }
    counts = _certified(claim for claim in claims if claim is not None)
    named = {name: float(value) for name, value in notes.items()}
    return Guess.of(counts, named, otherwise=Reason("bounds-leave-a-choice"))


def _certified(counts: Iterable[LeafCounts]) -> list[LeafCounts]:
    """Return leaf counts, each marked as certified: this attack returns nothing else."""
    return [replace(c, certified=np.ones(len(c.leaf), dtype=np.bool_)) for c in counts]
