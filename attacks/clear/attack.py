"""What parties with other columns of the same rows tell in clear, as attacks on a view."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from fedtrees.attacks.clear.spread import spread
from fedtrees.attacks.evidence.told_sides import rows_told, value_ends
from fedtrees.core.attack import Attack
from fedtrees.core.guess import ColumnValues, Guess, Labels
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View
from fedtrees.messages.captured import BestSplits, RowGradients
from fedtrees.messages.vertical import TreeColumns


@register.attack("clear-gradients")
@dataclass(frozen=True, kw_only=True)
class ClearGradients(Attack):
    """Read every row's label off the sign of its gradient.

    XGBoost's column split tells all parties the gradients of all rows (``aggregator.h``): of class
    1 they are p - 1, of class 0 p, whatever round they are of.
    """

    claims = (Labels,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no gradient of rows whose labels they lack."""
        seen = any(i.sender not in view.principals for i, _ in view.messages(RowGradients))
        own = view.own and all(held.y is None for held in view.own)
        return None if seen and own else Reason("no-gradients-in-clear")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the labels of all rows."""
        told = [m for i, m in view.messages(RowGradients) if i.sender not in view.principals]
        if not told or not view.own:
            return Guess.none(Reason("no-gradients-in-clear"))
        y = (told[0].g < 0).astype(np.int64)
        return Guess((Labels(view.own[0].ids, y, np.eye(2)[y]),))


@register.attack("split-values")
@dataclass(frozen=True, kw_only=True)
class SplitValues(Attack):
    """Read values of others' columns off their best splits, taken or not.

    Every party tells all others its best split of every node (``evaluate_splits.h``). Cut points of
    XGBoost's are values of the column, so that thresholds are; those that lose are in no model.
    """

    claims = (ColumnValues,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no best split of others, None if they do."""
        seen = any(m.owner not in view.principals for _, m in view.messages(BestSplits))
        return None if seen else Reason("no-best-splits")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the thresholds as values that one row has; notes count those that lost."""
        held = {m.party: m.columns for _, m in view.messages(TreeColumns)}
        best: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        found: dict[tuple[str, int], set[float]] = defaultdict(set)
        for _, m in view.messages(BestSplits):
            for node, gain in zip(m.node.tolist(), m.gain.tolist(), strict=True):
                best[m.round, node][m.first] = gain
        lost = total = 0
        for m in {(m.round, m.level, m.owner): m for _, m in view.messages(BestSplits)}.values():
            if m.owner in view.principals or m.owner not in held:
                continue
            for k in np.flatnonzero(m.gain > 0).tolist():
                column = int(held[m.owner][m.feature[k] - m.first])
                found[m.owner, column].add(float(m.threshold[k]))
                rivals, total = best[m.round, int(m.node[k])], total + 1
                lost += max(rivals, key=lambda f: (rivals[f], -f)) != m.first
        claims, ends, ranges = [], value_ends(view), view.schema.ranges
        anywhere = tuple(np.full(rows_told(view), end, np.float32) for end in (-np.inf, np.inf))
        for (owner, column), values in sorted(found.items()):
            read = np.unique(np.array(sorted(values), np.float32))
            low, high = ends.get(column, anywhere)
            there = ~np.isnan(low)
            told = spread(read, low[there], high[there], (ranges[0][column], ranges[1][column]))
            claims.append(ColumnValues(owner, column, *told, False))
        notes = {"splits": float(total), "splits_that_lost": float(lost)}
        return Guess.of(claims, notes, otherwise=Reason("no-best-splits"))
