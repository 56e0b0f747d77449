"""DP gradient descent: an arbiter adds accounted Gaussian noise to the gradients that it opens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from fedtrees.core.channel import Change
from fedtrees.core.defense import Context, Defense, Place
from fedtrees.core.errors import UsageError, check_positive, check_share, check_whole
from fedtrees.core.guarantee import ApproximateDP, Guarantee
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.fixed_point import integers, packed, rounded, unpacked
from fedtrees.messages.regression import (
    SCORE_BOUND,
    ColumnScales,
    Gradient,
    largest_residual,
    link_of,
)
from fedtrees.privacy.accounting import composed
from fedtrees.privacy.gaussian_dp import mu_of
from fedtrees.privacy.noise import Gaussian

#: Binary places of the noise's scale: as fine as to cost nothing, and far from what int64 holds.
_FINE = 24


@register.defense("dp-gd")
@dataclass(frozen=True)
class DPGradientDescent(Defense):
    """Noisy gradient descent (Bassily et al. 2014) in a vertical regression.

    Every party scales the rows of its columns down to norm `clip`, and keeps what they bring to a
    score within 2 over the number of parties: then a residual is at most 1 (of FATE's sigmoid) and
    a row moves no gradient by more than `clip` times that. The arbiter adds discrete Gaussian noise
    to each gradient that it opens, of a scale by which all parties' gradients of all rounds
    together keep to the budget: fewer rounds, less noise. The arbiter itself reads gradients
    without noise. How many rows there are is told, and means and deviations of columns unless
    ``statistics=public``.

    Parameters
    ----------
    epsilon, delta : float
        Of the whole run, for one row added or removed; epsilon in nats.
    clip : float
        Bound on the Euclidean norm of a row of one party's standardised columns.
    parties : int
        How many hold columns, at most.
    """

    epsilon: float
    delta: float = 1e-5
    clip: float = 2.0
    parties: int = 3

    acts_through = frozenset({"outgoing"})
    at = frozenset({"arbiter"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES})
    guards = (Gradient,)
    tries: ClassVar[Mapping[str, tuple[float, ...]]] = {"epsilon": (1.0, 4.0, 8.0)}

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_positive("clip", self.clip)
        check_share("delta", self.delta)
        check_whole("parties", self.parties, 1)

    @cached_property
    def row_bounds(self) -> tuple[float, float]:  # type: ignore[override]
        """Norm of a party's rows, and what these may bring to a score."""
        return float(self.clip), SCORE_BOUND / self.parties

    def claim(self) -> Guarantee:
        """Return (epsilon, delta)-DP of all gradients that are opened."""
        return ApproximateDP(float(self.epsilon), self.delta, unprotected="rows", trusted="arbiter")

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse another number of parties, and batches."""
        there = sum(role in ("active", "passive") for role in roles.values())
        if there > self.parties:
            raise UsageError(f"dp-gd[parties={self.parties}]: {there} hold columns; say so")
        if parameters.get("batch"):
            raise UsageError(
                f"batch={parameters['batch']}: a row more moves others to other batches; dp-gd "
                "takes all rows in a round, batch=0"
            )

    def scale(self, schema: Schema, parameters: Mapping[str, Any]) -> tuple[float, float, int]:
        """Return scale and sensitivity of an opened gradient in grid steps, and the grid's places.

        Rounding to the grid moves each number of a gradient by at most half a step.
        """
        mu = mu_of(self.epsilon, self.delta) / math.sqrt(parameters["rounds"] * self.parties)
        moved = self.clip * largest_residual(link_of(parameters, bool(schema.classes)))
        places = max(0, _FINE - math.frexp(moved / mu)[1])
        longest = len(schema.features) + parameters["fake"] + 1
        steps = moved * 2.0**places + math.sqrt(longest)
        return math.hypot(steps / mu, 2.0), steps, places

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Mapping[Place, Change]:
        """State the noise."""
        scale, _, places = self.scale(schema, parameters)
        return {(Gradient, "values"): Gaussian(scale / 2.0**places)}

    def outgoing(self, message: Message, ctx: Context) -> Message:
        """Round to the grid, add noise, and enter the cost."""
        assert isinstance(message, Gradient)
        if not ctx.schema.classes:
            raise UsageError(
                "dp-gd bounds residuals of two classes; a numeric target is standardised by its "
                "own mean, which no noise covers"
            )
        scale, steps, places = self.scale(ctx.schema, ctx.parameters)
        kept = rounded(unpacked(message.values), message.bits - places)
        noisy = integers(Gaussian(scale, whole=True).send(kept, ctx.rng("gradient-noise")))
        ctx.spend("discrete-gaussian", l2=steps, scale=scale, what="Gradient", trusted="arbiter")
        return replace(message, values=packed(noisy), bits=places)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose what was opened; infinite where columns' own means and deviations were told."""
        own = [e for e in transcript.events if e.what == "Gradient"]
        found = composed(own, self.delta) if own else math.inf
        told = any(isinstance(d.message, ColumnScales) and not d.message.declared
                   for d in transcript)  # fmt: skip
        if told:
            return ApproximateDP(math.inf, self.delta, unprotected="columns+rows",
                                 trusted="arbiter", updates=found)  # fmt: skip
        return ApproximateDP(found, self.delta, unprotected="rows", trusted="arbiter")
