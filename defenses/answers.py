"""What an endpoint's scores are changed by before they are answered: rounding, noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.defense import Context, Declared, Defense
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Structural
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema


class _Answers(Defense):
    """Acts on scores that are answered alone: no more than the model itself where it is told."""

    guarantee = Structural()

    def endpoint(self, answers: str, budget: int) -> tuple[str, int]:
        """Change neither: overridden so that protocols which release their model refuse it."""
        return answers, budget


@register.defense("answer-rounding")
@dataclass(frozen=True)
class AnswerRounding(_Answers):
    """Round every score to `decimals` before it is answered.

    Probabilities of more than two classes are rounded so that they still add up to 1: down, and up
    again where most was cut off.

    Parameters
    ----------
    decimals : int
        Decimals kept, 0 to 12.
    """

    decimals: int = 2

    def __post_init__(self) -> None:
        if type(self.decimals) is not int or not 0 <= self.decimals <= 12:
            raise UsageError(f"decimals must be an integer from 0 to 12; got {self.decimals!r}")

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish the step."""
        return Declared(answer_step=10.0**-self.decimals)

    def answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Round the scores."""
        if scores.ndim == 1:
            return np.round(scores, self.decimals)
        steps = scores * 10.0**self.decimals
        whole = np.floor(steps + 1e-9)
        short = np.round(steps.sum(axis=1) - whole.sum(axis=1)).astype(np.int64)
        place = np.argsort(np.argsort(whole - steps, axis=1, kind="stable"), axis=1)
        rounded: NDArray[np.float64] = (whole + (place < short[:, None])) / 10.0**self.decimals
        return rounded


@register.defense("answer-noise")
@dataclass(frozen=True)
class AnswerNoise(_Answers):
    """Add Laplace noise to every score that is answered, afresh in every answer.

    Probabilities stay between 0 and 1, and those of more than two classes add up to 1. Whoever may
    ask the same record again averages it out; nothing is claimed of it.

    Parameters
    ----------
    scale : float
        Of the noise, in the unit of the scores.
    """

    scale: float = 0.01

    def __post_init__(self) -> None:
        if type(self.scale) not in (int, float) or not 0 < self.scale < np.inf:
            raise UsageError(f"scale must be a number above 0; got {self.scale!r}")

    def declares(self, schema: Schema, parameters: Mapping[str, Any]) -> Declared:
        """Publish the scale."""
        return Declared(answer_scale=float(self.scale))

    def answer(self, scores: NDArray[np.float64], ctx: Context) -> NDArray[np.float64]:
        """Add the noise."""
        noisy: NDArray[np.float64] = scores + ctx.rng("answers").laplace(
            scale=self.scale, size=scores.shape
        )
        if not ctx.schema.classes:
            return noisy
        noisy = np.clip(noisy, 0, 1)
        if noisy.ndim == 1:
            return noisy
        even = np.full_like(noisy, 1 / noisy.shape[1])
        total = noisy.sum(axis=1, keepdims=True)
        np.divide(noisy, total, out=even, where=total > 0)
        return even
