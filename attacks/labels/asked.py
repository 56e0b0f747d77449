"""The attack `asked-labels`: query a prediction endpoint with the training rows."""

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

DECAY = 0.6  # weight of a boosted tree relative to the previous round, as in `LeafAttack`


@register.attack("asked-labels")
@dataclass(frozen=True, kw_only=True)
class AskedLabels(Attack):
    """Infer labels from the predictions of training rows, and propagate them to further rows.

    A party with columns of the training rows sends queries with their ids and the values of its
    columns. The other parties add their values (``passive[queries=1000,records=held]``). The
    predictions are close to the labels, because the model was fitted to them. Labels of rows beyond
    the budget follow from the record-id graph and the splits, as in `few-shot`.
    """

    claims = (Labels,)

    threats: ClassVar[tuple[str, ...]] = ("passive[queries=1000,records=held]",)

    def inapplicable(self, view: View) -> Reason | None:
        """Return why the attack does not apply, None if it does.

        It needs an endpoint that completes training rows and returns predictions instead of leaf
        ids, and rows of which the principals do not know the labels.
        """
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
        """Query random training rows up to the budget, and infer the labels of all rows.

        Parameters
        ----------
        view : View
            Contains the endpoint (``view.oracle``).
        rng : numpy.random.Generator
            Draws the rows to query.

        Returns
        -------
        guess : Guess
            `Labels` with class probabilities. The guess is empty if the attack does not apply.
        """
        seen = leaf_view(view, "drop", DECAY)
        if seen is None or view.oracle is None:
            return Guess.none(self.inapplicable(view) or Reason("no-unlabelled-rows"))
        drawn = np.sort(rng.permutation(len(seen.columns.ids))[: view.oracle.left])
        answers = _answers(view.oracle, seen.columns, drawn, seen.classes)
        answered = np.zeros((len(seen.twins.weight), seen.classes))
        np.add.at(answered, seen.twins.of_row[drawn], answers)
        shares = spread(seen.twins, answered)[seen.twins.of_row]
        # Average the propagated labels with the most probable ones given the splits.
        if 0 < len(drawn) < len(shares) and seen.leaves.shape[1]:
            sure = np.full(len(shares), -1)
            sure[drawn] = answers.argmax(axis=1)
            climbed = LabelMixture().climbed(seen, [shares.argmax(axis=1)], sure, rng)
            shares = (shares + np.eye(seen.classes)[climbed]) / 2
        shares[drawn] = answers
        return Guess((Labels(seen.columns.ids, shares.argmax(axis=1), shares),))


def _answers(
    oracle: Oracle, columns: Columns, drawn: NDArray[np.intp], classes: int
) -> NDArray[np.float64]:
    """Query the endpoint about the drawn rows. Return class probabilities, shape (n, K)."""
    X = np.full((len(drawn), oracle.width or 0), np.nan, dtype=np.float32)
    X[:, columns.positions] = columns.X[drawn]
    outputs = oracle.query(X, columns.ids[drawn])
    if oracle.answers == "label":
        return np.eye(classes)[outputs]
    return np.stack([1 - outputs, outputs], axis=1) if outputs.ndim == 1 else np.asarray(outputs)
