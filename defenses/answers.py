"""What an endpoint's scores are changed by before they are answered: rounding, noise."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Chain, Change, Channel
from fedtrees.core.coarsening import Decimals, Ends, LargestRemainders
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.errors import check_positive, check_whole
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.privacy.noise import Laplace, NoisyShares


class _Answers(Defense):
    """Acts on scores that are answered alone: no more than the model itself where it is told."""

    acts_through = frozenset({"answer", "endpoint"})
    guarantee = Structural()

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Change neither: overridden so that protocols which release their model refuse it."""
        return answers, budget

    @abstractmethod
    def law(self, classes: int) -> Channel:
        """Return what happens to a record's scores, by the number of classes; 0: a number."""

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State what happens to a record's scores."""
        return {("answers", "scores"): self.law(len(schema.classes))}

    def answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Change the scores."""
        return self.law(len(ctx.schema.classes)).send(scores, ctx.rng("answers"))


@register.defense("answer-rounding")
@dataclass(frozen=True)
class AnswerRounding(_Answers):
    """Round every score to `decimals` before it is answered.

    Probabilities of more than two classes are rounded so that they still add up to 1: down, and up
    again where most was cut off.

    `decimals`: Decimals kept, 0 to 12.
    """

    decimals: int = 2

    def __post_init__(self) -> None:
        check_whole("decimals", self.decimals, 0, 12)

    def law(self, classes: int) -> Channel:
        """Return the rounding; of more than two classes joint over a record."""
        return Decimals(self.decimals) if classes <= 2 else LargestRemainders(self.decimals)


@register.defense("answer-noise")
@dataclass(frozen=True)
class AnswerNoise(_Answers):
    """Add Laplace noise to every score that is answered, afresh in every answer.

    Probabilities stay between 0 and 1, and those of more than two classes add up to 1. Whoever may
    ask the same record again averages it out; nothing is claimed of it.

    `scale`: Of the noise, in the unit of the scores.
    """

    scale: float = 0.01

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)

    def law(self, classes: int) -> Channel:
        """Return the noise, and what keeps probabilities such."""
        if classes > 2:
            return NoisyShares(float(self.scale))
        noise = Laplace(float(self.scale))
        return Chain((noise, Ends(0.0, 1.0))) if classes else noise
