"""A model of the prediction endpoint, for attacks that query it.

The adversary is the active party of a vertical federation. It knows the shape of the trees and the
leaf values, but not the thresholds on the columns of other parties. `Endpoint` computes the answer
that it expects for a path of a record through the trees, and the likelihood of the answer that it
received. The channel of the answers (rounding or noise) is read from the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.queries.splits import Way
from fedtrees.core.channel import Chain
from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel

#: Natural logarithm of the odds at which the side of a record is accepted under noise. It is wrong
#: once in about 1,100 decisions (e^7). A higher value needs more records per decision, so that a
#: budget of 2,000 records finds fewer thresholds. On breast cancer, the share of thresholds found
#: is .836 at 7 and .754 at 10.
BELIEVED = 7.0
# Scores that differ by less are treated as equal. Scores of float32 margins agree to about 1e-7.
_CLOSE = 1e-6


class Endpoint:
    """A prediction endpoint as the adversary models it.

    Attributes
    ----------
    model : HeldModel
        Trees as the active party knows them.
    labels : bool
        Whether the endpoint answers with classes instead of scores.
    law : Channel
        Channel that every score passes before it is sent.
    exact : bool
        Whether the channel is deterministic (identity or rounding).
    rounded : bool
        Whether the channel is deterministic but not the identity.
    scale : float
        Scale of the Laplace distribution that has the variance of the noise, 0 without noise.
    """

    def __init__(self, view: View, model: HeldModel) -> None:
        assert view.oracle is not None
        self.model, self.labels = model, view.oracle.answers == "label"
        self.law = view.channel("answers", "scores") or Chain(())
        self.exact = bool(self.law.deterministic)
        self.rounded = self.exact and self.law != Chain(())
        # The noise may depend on the score. Its variance is taken at scores of one half.
        middle_scores = np.full(max(len(view.schema.classes), 1), 0.5)
        self.scale = (
            0.0
            if self.exact
            else float(np.sqrt(self.law.posterior_moments(middle_scores)[1].max() / 2))
        )

    def predict_paths(self, ways: Sequence[Way]) -> NDArray[np.float64]:
        """Return the scores of paths, shape (M,) or (M, K), rounded if the channel rounds."""
        return self.score_leaves(np.array([way.leaves for way in ways]))

    def score_leaves(self, leaves: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return the scores of leaves, int array of shape (M, T), rounded if the channel rounds."""
        scores = self.model.scores(leaves)
        return self.law.send(scores) if self.exact else scores

    def answer_leaves(self, leaves: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return the noise-free answers for leaves, int array (M, T): scores or classes."""
        scores = self.score_leaves(leaves)
        if not self.labels:
            return scores
        return scores > 0.5 if scores.ndim == 1 else scores.argmax(axis=1)

    def apart(self, ways: Sequence[Way], u: int) -> float:
        """Return how well answers distinguish the two sides of an unknown threshold.

        Parameters
        ----------
        ways : sequence of Way
            Paths that the record may take.
        u : int
            Position of the threshold in the list ``splits.unknown``.

        Returns
        -------
        separation : float
            Under noise, the smallest distance between the expected answers of the two sides.
            Otherwise the share of paths whose answer occurs on one side only. 0 if all paths are on
            one side.
        """
        scores = self._comparable(self.predict_paths(ways))
        side = np.array([way.went.get(u, -1) for way in ways])
        nearest = []
        for tested_side in (0, 1):
            scores_of_side, other_scores = scores[side == tested_side], scores[side != tested_side]
            if not len(scores_of_side) or not len(other_scores):
                return 0.0
            nearest.append(
                np.abs(scores_of_side[:, None] - other_scores[None]).max(axis=2).min(axis=1)
            )
        distances = np.concatenate(nearest)
        if self.scale:
            return float(distances.min())
        return float((distances > _CLOSE).mean())

    def distinct(self, ways: Sequence[Way]) -> bool:
        """Return whether the noise-free answers of all paths differ from one another."""
        scores = self._comparable(self.predict_paths(ways))
        distances = np.abs(scores[:, None] - scores[None]).max(axis=2)
        # The distance of a path to itself must not count.
        np.fill_diagonal(distances, np.inf)
        return bool((distances > _CLOSE).all())

    def likelihood(self, ways: Sequence[Way], answers: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log-likelihood of each path, given n answers to the same record."""
        return self.fit(self.predict_paths(ways), answers)

    def window(self, answer: NDArray[Any]) -> tuple[float, float]:
        """Return the lower and upper end of the interval that contains a record's score.

        The interval is infinite if the answers are noisy or the model has more than two classes.
        """
        received = np.asarray(answer)
        if received.ndim or self.scale:
            return -np.inf, np.inf
        if self.labels:
            return (0.5 - _CLOSE, np.inf) if received else (-np.inf, 0.5 + _CLOSE)
        # Interval of all scores that the channel rounds to this answer.
        low, high = self.law.bounds(received.astype(np.float64)[None, None])
        return float(low.item()) - _CLOSE, float(high.item()) + _CLOSE

    def fit(self, scores: NDArray[np.float64], answers: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log-likelihood of answers, given the scores of the paths.

        Parameters
        ----------
        scores : float64 array, shape (M,) or (M, K)
            Scores of the paths, as returned by `predict_paths`.
        answers : array, shape (n,) or (n, K)
            Answers to the same record.

        Returns
        -------
        log_likelihood : float64 array, shape (M,)
            In nats. Without noise it is 0 for the paths that agree with the answers best, and -inf
            for all other paths.
        """
        if self.labels:
            return self._label_likelihood(scores, np.asarray(answers))
        received = np.asarray(answers, dtype=np.float64).reshape(1, len(answers), -1)
        scores = scores.reshape(len(scores), 1, -1)
        if self.scale:
            return self.law.log_likelihood(received, scores).sum(axis=1)
        deviation = np.abs(scores - received).max(axis=(1, 2), initial=0.0)
        fits = deviation <= (
            _CLOSE if self.rounded else min(max(deviation.min(initial=1.0), 1e-15), _CLOSE)
        )
        # A difference in the last bit can change the result of rounding. The interval of scores
        # that could have been rounded to the answer decides in this case.
        if not fits.any():
            low, high = self.law.bounds(received)
            fits = ((low - _CLOSE <= scores) & (scores <= high + _CLOSE)).all(axis=(1, 2))
        return np.where(fits, 0.0, -np.inf)

    def information(self, gap: float) -> float:
        """Return the expected log-likelihood ratio that one noisy answer contributes, in nats.

        Parameters
        ----------
        gap : float
            Distance between the expected answers of the two sides.
        """
        if not self.scale:
            return np.inf
        if self.labels:
            # Pinsker's inequality bounds the divergence of two Bernoulli distributions from below.
            return 2 * gap**2
        # Kullback-Leibler divergence of two Laplace distributions at distance `gap`.
        return gap / self.scale + np.exp(-gap / self.scale) - 1

    def _comparable(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return one row of numbers per path, shape (M, k), by which answers are compared.

        The numbers are scores, or classes. For noisy labels of two classes, they are the
        probabilities of class 1.
        """
        if not self.labels:
            return scores.reshape(len(scores), -1)
        if self.scale and scores.ndim == 1:
            return self._chance(scores)[:, None]
        classes = scores > 0.5 if scores.ndim == 1 else scores.argmax(axis=1)
        return classes.astype(np.float64)[:, None]

    def _chance(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the probability that a noisy score exceeds one half."""
        return np.exp(self.law.log_mass(np.nextafter(0.5, 1), np.array(np.inf), scores[:, None]))

    def _label_likelihood(
        self, scores: NDArray[np.float64], answers: NDArray[Any]
    ) -> NDArray[np.float64]:
        """Return the log-likelihood of classes, given the scores of the paths."""
        if self.scale and scores.ndim == 1:
            chance = np.clip(self._chance(scores), 1e-12, 1 - 1e-12)
            ones = float((answers == 1).sum())
            return ones * np.log(chance) + (len(answers) - ones) * np.log1p(-chance)
        classes = self._comparable(scores)[:, 0]
        same = (classes[:, None] == answers[None]).sum(axis=1)
        # The probabilities of more than two classes are not computed. The number of agreeing
        # answers ranks the paths instead.
        if self.scale:
            return same.astype(np.float64)
        return np.where(same == len(answers), 0.0, -np.inf)
