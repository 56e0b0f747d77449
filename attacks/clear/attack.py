"""Attacks on a captured vertical XGBoost training, which sends gradients and splits unencrypted.

`clear-gradients` infers the labels of all rows, and `split-values` infers values of columns of
other parties.
"""

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
    """Infer every row's label from the sign of its gradient.

    XGBoost's column split broadcasts the gradients of all rows to all parties (``aggregator.h``).
    The gradient of a row of class 1 is p - 1, which is negative, and that of class 0 is p, in every
    round.
    """

    claims = (Labels,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no gradients of rows whose labels they lack."""
        seen = any(i.sender not in view.principals for i, _ in view.messages(RowGradients))
        unlabelled = view.own and all(local_data.y is None for local_data in view.own)
        return None if seen and unlabelled else Reason("no-gradients-in-clear")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Return the labels of all rows."""
        received = [m for i, m in view.messages(RowGradients) if i.sender not in view.principals]
        if not received or not view.own:
            return Guess.none(Reason("no-gradients-in-clear"))
        y = (received[0].g < 0).astype(np.int64)
        return Guess((Labels(view.own[0].ids, y, np.eye(2)[y]),))


@register.attack("split-values")
@dataclass(frozen=True, kw_only=True)
class SplitValues(Attack):
    """Infer values of other parties' columns from their best splits, chosen or not.

    Every party broadcasts its best split of every node (``evaluate_splits.h``). The cut points of
    XGBoost are values of the column, so that a threshold is a value of some row. The thresholds of
    splits that were not chosen occur in no model.
    """

    claims = (ColumnValues,)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the principals see no best split of another party, None if they do."""
        seen = any(m.owner not in view.principals for _, m in view.messages(BestSplits))
        return None if seen else Reason("no-best-splits")

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Claim the thresholds, each as the value of at least one row.

        Diagnostics: ``splits`` counts the splits of other parties with a positive gain, and
        ``splits_that_lost`` those that were not chosen.
        """
        party_columns = {m.party: m.columns for _, m in view.messages(TreeColumns)}
        best: dict[tuple[int, int], dict[int, float]] = defaultdict(dict)
        thresholds: dict[tuple[str, int], set[float]] = defaultdict(set)
        for _, m in view.messages(BestSplits):
            for node, gain in zip(m.node.tolist(), m.gain.tolist(), strict=True):
                best[m.round, node][m.first] = gain
        lost = total = 0
        for m in {(m.round, m.level, m.owner): m for _, m in view.messages(BestSplits)}.values():
            if m.owner in view.principals or m.owner not in party_columns:
                continue
            for k in np.flatnonzero(m.gain > 0).tolist():
                column = int(party_columns[m.owner][m.feature[k] - m.first])
                thresholds[m.owner, column].add(float(m.threshold[k]))
                rivals, total = best[m.round, int(m.node[k])], total + 1
                # XGBoost chooses the largest gain, and the first party among equal gains.
                lost += max(rivals, key=lambda f: (rivals[f], -f)) != m.first
        claims, ends, ranges = [], value_ends(view), view.schema.ranges
        anywhere = tuple(np.full(rows_told(view), end, np.float32) for end in (-np.inf, np.inf))
        for (owner, column), values in sorted(thresholds.items()):
            known_values = np.unique(np.array(sorted(values), np.float32))
            low, high = ends.get(column, anywhere)
            present = ~np.isnan(low)
            estimate = spread(
                known_values, low[present], high[present], (ranges[0][column], ranges[1][column])
            )
            claims.append(ColumnValues(owner, column, *estimate, False))
        notes = {"splits": float(total), "splits_that_lost": float(lost)}
        return Guess.of(claims, notes, otherwise=Reason("no-best-splits"))
