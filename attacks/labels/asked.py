"""`asked-labels`: an endpoint that looks rows up is asked for the training rows themselves."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.labels.attack import LabelMixture, leaf_view
from fedtrees.attacks.labels.evidence import Columns, own_columns
from fedtrees.attacks.labels.spreading import spread
from fedtrees.core.attack import Attack
from fedtrees.core.guess import Guess, Labels
from fedtrees.core.oracle import Oracle
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.view import View

DECAY = 0.6  # of boosted trees, as in all attacks on labels


@register.attack("asked-labels")
@dataclass(frozen=True, kw_only=True)
class AskedLabels(Attack):
    """What an endpoint answers of training rows, spread to the rows that it was not asked for.

    Whoever holds columns of the training rows names them by id and gives its own values; the others
    look up theirs, ``passive[queries=1000,records=held]``. A model has fitted these very labels;
    rows beyond the budget follow from the record-id graph and the splits as in `few-shot`.
    """

    claims = (Labels,)

    threats: ClassVar[tuple[str, ...]] = ("passive[queries=1000,records=held]",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return what is missing: rows without labels, or an endpoint that looks rows up."""
        if view.oracle is None:
            return Reason("no-endpoint", threat="queries=1000,records=held")
        if view.oracle.records != "held":
            return Reason("no-records-held", threat="records=held")
        if view.oracle.answers == "leaf-ids":
            return Reason("endpoint-answers", answers="leaf ids")
        if own_columns(view) is None:
            return Reason("no-unlabelled-rows")
        return None

    def run(self, view: View, rng: np.random.Generator) -> Guess:
        """Ask for as many rows as the budget bears, drawn at random."""
        seen = leaf_view(view, "drop", DECAY)
        if seen is None or view.oracle is None:
            return Guess.none(self.inapplicable(view) or Reason("no-unlabelled-rows"))
        drawn = np.sort(rng.permutation(len(seen.columns.ids))[: view.oracle.left])
        told = _answers(view.oracle, seen.columns, drawn, seen.classes)
        known = np.zeros((len(seen.twins.weight), seen.classes))
        np.add.at(known, seen.twins.of_row[drawn], told)
        shares = spread(seen.twins, known)[seen.twins.of_row]
        if 0 < len(drawn) < len(shares) and seen.leaves.shape[1]:
            sure = np.full(len(shares), -1)
            sure[drawn] = told.argmax(axis=1)
            found = LabelMixture().climbed(seen, [shares.argmax(axis=1)], sure, rng)
            shares = (shares + np.eye(seen.classes)[found]) / 2
        shares[drawn] = told
        return Guess((Labels(seen.columns.ids, shares.argmax(axis=1), shares),))


def _answers(
    oracle: Oracle, columns: Columns, drawn: NDArray[np.intp], classes: int
) -> NDArray[np.float64]:
    """Return what the endpoint says of some rows, shares of classes (n, K)."""
    X = np.full((len(drawn), oracle.width or 0), np.nan, dtype=np.float32)
    X[:, columns.positions] = columns.X[drawn]
    found = oracle.query(X, columns.ids[drawn])
    if oracle.answers == "label":
        return np.eye(classes)[found]
    return np.stack([1 - found, found], axis=1) if found.ndim == 1 else np.asarray(found)
