"""Defenses of an inference endpoint: rounded or perturbed scores, fewer answers, no leaf ids.

They protect the training rows against adversaries that query the deployed model. They do not change
any message of the training.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Chain, Channel
from fedtrees.core.defense import Channels, Context, Defense
from fedtrees.core.deterministic_channels import Decimals, Ends, LargestRemainders
from fedtrees.core.guarantee import Structural
from fedtrees.core.parameters import positive, whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.privacy.noise import Laplace, NoisyShares


class _Answers(Defense):
    """Base of defenses that change the scores of inference queries.

    They are refused if the protocol releases its model, because its recipients can then compute the
    exact scores.
    """

    # Overriding `endpoint` is what lets `fedtrees.protocols.compatibility` find and refuse these
    # defenses.
    guarantee = Structural()

    def limit_endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Return both arguments unchanged.

        The hook is overridden because protocols that release their model refuse every defense that
        acts through it.
        """
        return answers, budget

    @abstractmethod
    def law(self, classes: int) -> Channel:
        """Return the channel of one record's scores. 0 classes: the target is numeric."""

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the channel of the scores."""
        return {("answers", "scores"): self.law(len(schema.classes))}

    def transform_answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Apply the channel to scores, float64, shape (m,) or (m, K)."""
        return self.law(len(ctx.schema.classes)).send(scores, ctx.rng("answers"))


@register.defense("answer-rounding")
@dataclass(frozen=True)
class AnswerRounding(_Answers):
    """Round every score to `decimals` before the endpoint returns it.

    With more than two classes, the K probabilities of a record are rounded by the method of largest
    remainders, so that they still add up to 1. All are rounded down, and those with the largest
    remainders are then rounded up.

    Parameters
    ----------
    decimals : int
        Number of decimals of the returned scores, 0 to 12.
    """

    decimals: int = whole(0, 12, default=2)

    def law(self, classes: int) -> Channel:
        """Return `Decimals` for two classes or a number, `LargestRemainders` for more classes."""
        return Decimals(self.decimals) if classes <= 2 else LargestRemainders(self.decimals)


@register.defense("answer-noise")
@dataclass(frozen=True)
class AnswerNoise(_Answers):
    """Add Laplace noise to every score before the endpoint returns it.

    Every query gets new noise. Probabilities are clipped to [0, 1], and those of more than two
    classes are divided by their sum. No privacy is claimed, because an adversary that may repeat a
    query can average the noise out.

    Parameters
    ----------
    scale : float
        Scale of the Laplace noise, above 0, in the unit of the scores.
    """

    scale: float = positive(0.01)

    def law(self, classes: int) -> Channel:
        """Return the noise, followed by clipping if the scores are probabilities."""
        if classes > 2:
            # One joint channel, because the division by the sum couples the K probabilities.
            return NoisyShares(float(self.scale))
        noise = Laplace(float(self.scale))
        # Predictions of a numeric target have no bounds to clip to.
        return Chain((noise, Ends(0.0, 1.0))) if classes else noise


@register.defense("query-limit")
@dataclass(frozen=True)
class QueryLimit(Defense):
    """Limit the number of rows that one client of the endpoint can query.

    The limit counts rows, not requests. A limit on requests would depend on their size: 20,100 rows
    are 100 requests of 201 rows, or 20,100 requests of one row. Li et al. 2022 count requests.

    Parameters
    ----------
    records : int
        Number of rows, at least 1.
    """

    records: int = whole(1, default=1000)

    guarantee = Structural()

    def limit_endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Reduce the budget to `records` rows."""
        return answers, min(budget, self.records)


@register.defense("hide-leaf-ids")
@dataclass(frozen=True)
class HideLeafIds(Defense):
    """Return scores from an endpoint that would otherwise return leaf indices.

    The parties must then route rows without revealing the path of a row to one another. fedtrees
    assumes an ideal functionality for this, and does not implement a protocol.
    """

    guarantee = Structural()

    def limit_endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Replace leaf indices by scores."""
        return ("score" if answers == "leaf-ids" else answers), budget
