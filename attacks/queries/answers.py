"""What an endpoint would answer of a way through the trees, and how well an answer fits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.attacks.queries.splits import Way
from fedtrees.core.channel import Chain
from fedtrees.core.view import View
from fedtrees.messages.vertical import HeldModel

#: Natural logarithm of the odds at which a noisy answer is believed: wrong once in 1,100. Wrong
#: less often it asks more, and a budget of 2,000 finds less (breast cancer: .754 at 10, .836).
BELIEVED = 7.0
_CLOSE = 1e-6


class Endpoint:
    """Scores or labels, as they pass the channel that the view states."""

    def __init__(self, view: View, model: HeldModel) -> None:
        assert view.oracle is not None
        self.model, self.labels = model, view.oracle.answers == "label"
        self.law = view.channel("answers", "scores") or Chain(())
        self.exact = bool(self.law.deterministic)
        self.rounded = self.exact and self.law != Chain(())
        middle = np.full(max(len(view.schema.classes), 1), 0.5)
        self.scale = 0.0 if self.exact else float(np.sqrt(self.law.error(middle)[1].max() / 2))

    def predicted(self, ways: Sequence[Way]) -> NDArray[np.float64]:
        """Return the scores of ways, float64, shape (M,) or (M, K), rounded where that is exact."""
        return self.scored(np.array([way.leaves for way in ways]))

    def scored(self, leaves: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
        """Return the same of leaves, shape (M, T)."""
        scores = self.model.scores(leaves)
        return self.law.send(scores) if self.exact else scores

    def answered(self, leaves: NDArray[np.integer[Any]]) -> NDArray[Any]:
        """Return what would be answered of leaves, but for noise: scores or classes."""
        scores = self.scored(leaves)
        if not self.labels:
            return scores
        return scores > 0.5 if scores.ndim == 1 else scores.argmax(axis=1)

    def apart(self, ways: Sequence[Way], u: int) -> float:
        """Return how well answers tell the sides of a threshold apart; 0: not at all.

        Of noisy ones their distance; else the share of the ways that give their side away.
        """
        scores = self._comparable(self.predicted(ways))
        side = np.array([way.went.get(u, -1) for way in ways])
        nearest = []
        for one in (0, 1):
            mine, rest = scores[side == one], scores[side != one]
            if not len(mine) or not len(rest):
                return 0.0
            nearest.append(np.abs(mine[:, None] - rest[None]).max(axis=2).min(axis=1))
        distances = np.concatenate(nearest)
        if self.scale:
            return float(distances.min())
        return float((distances > _CLOSE).mean())

    def distinct(self, ways: Sequence[Way]) -> bool:
        """Tell whether all ways have different answers."""
        scores = self._comparable(self.predicted(ways))
        apart = np.abs(scores[:, None] - scores[None]).max(axis=2)
        np.fill_diagonal(apart, np.inf)
        return bool((apart > _CLOSE).all())

    def likelihood(self, ways: Sequence[Way], answers: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log likelihood of answers to one record, asked n times, for every way."""
        return self.fit(self.predicted(ways), answers)

    def window(self, answer: NDArray[Any]) -> tuple[float, float]:
        """Return the ends of the number that a record's score is, by one answer.

        They are infinite under noise, and of more than two classes.
        """
        told = np.asarray(answer)
        if told.ndim or self.scale:
            return -np.inf, np.inf
        if self.labels:
            return (0.5 - _CLOSE, np.inf) if told else (-np.inf, 0.5 + _CLOSE)
        low, high = self.law.bounds(told.astype(np.float64)[None, None])
        return float(low.item()) - _CLOSE, float(high.item()) + _CLOSE

    def fit(self, scores: NDArray[np.float64], answers: NDArray[Any]) -> NDArray[np.float64]:
        """Return the log likelihood of answers by the scores of ways, as `predicted` has them.

        Of exact answers only what comes closest fits.
        """
        if self.labels:
            return self._label_likelihood(scores, np.asarray(answers))
        told = np.asarray(answers, dtype=np.float64).reshape(1, len(answers), -1)
        scores = scores.reshape(len(scores), 1, -1)
        if self.scale:
            return self.law.log_likelihood(told, scores).sum(axis=1)
        off = np.abs(scores - told).max(axis=(1, 2), initial=0.0)
        fits = off <= (_CLOSE if self.rounded else min(max(off.min(initial=1.0), 1e-15), _CLOSE))
        if not fits.any():  # a last place may tip what is rounded
            low, high = self.law.bounds(told)
            fits = ((low - _CLOSE <= scores) & (scores <= high + _CLOSE)).all(axis=(1, 2))
        return np.where(fits, 0.0, -np.inf)

    def information(self, gap: float) -> float:
        """Return the expected log odds that one noisy answer brings, in nats."""
        if not self.scale:
            return np.inf
        if self.labels:
            return 2 * gap**2  # a lower bound: Pinsker
        return gap / self.scale + np.exp(-gap / self.scale) - 1

    def _comparable(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scores, classes, or with noise the chance of class 1, shape (M, k)."""
        if not self.labels:
            return scores.reshape(len(scores), -1)
        if self.scale and scores.ndim == 1:
            return self._chance(scores)[:, None]
        classes = scores > 0.5 if scores.ndim == 1 else scores.argmax(axis=1)
        return classes.astype(np.float64)[:, None]

    def _chance(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the chance that a noisy score is above one half."""
        return np.exp(self.law.log_mass(np.nextafter(0.5, 1), np.inf, scores[:, None]))

    def _label_likelihood(
        self, scores: NDArray[np.float64], answers: NDArray[Any]
    ) -> NDArray[np.float64]:
        if self.scale and scores.ndim == 1:
            chance = np.clip(self._chance(scores), 1e-12, 1 - 1e-12)
            ones = float((answers == 1).sum())
            return ones * np.log(chance) + (len(answers) - ones) * np.log1p(-chance)
        classes = self._comparable(scores)[:, 0]
        same = (classes[:, None] == answers[None]).sum(axis=1)
        if self.scale:  # of more than two classes: the likeliest is the score's
            return same.astype(np.float64)
        return np.where(same == len(answers), 0.0, -np.inf)
