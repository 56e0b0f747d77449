"""Defense `dp-gd`: an arbiter adds Gaussian noise to the gradients that it decrypts.

The noise gives (epsilon, delta)-differential privacy to all gradients of a vertical logistic
regression together. `fedtrees.privacy.gaussian_dp` converts the budget into a noise multiplier, and
`fedtrees.protocols.regression` applies the bounds on rows and scores.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedtrees.core.defense import Channels, Context, Defense, DefenseInfo, Requirements
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import ApproximateDP, Guarantee
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.parameters import positive, share, whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.linear import (
    SCORE_BOUND,
    drop_places,
    largest_residual,
    link_polynomial,
    pack_integers,
    to_python_integers,
    unpack_integers,
)
from fedtrees.messages.regression import ColumnScales, Gradient
from fedtrees.privacy.accounting import compose_releases
from fedtrees.privacy.gaussian_dp import mu_of
from fedtrees.privacy.noise import Gaussian

# The grid of the rounded gradients is chosen so that the noise has a scale of 2^23 to 2^24 steps.
# Rounding then adds a negligible sensitivity, and the noise stays far from the limit of int64. For
# very small budgets the grid consists of whole numbers and the scale is larger. The sampler refuses
# scales above 2^46 steps.
_FINE = 24


@register.defense("dp-gd")
@dataclass(frozen=True)
class DPGradientDescent(Defense):
    """Noisy gradient descent (Bassily et al. 2014) in a vertical logistic regression.

    Every party scales the rows of its standardised columns down to Euclidean norm `clip`, and clips
    their contribution to a score to 2 / `parties` in absolute value. A score is therefore between
    -2 and 2, and a residual is at most 1 in absolute value with FATE's linear approximation of the
    sigmoid. One row then changes a party's gradient by at most `clip` times the largest residual.

    The arbiter adds discrete Gaussian noise to each gradient that it decrypts. The noise is
    calibrated so that the gradients of all parties and all rounds together satisfy the budget.
    Fewer rounds therefore need less noise. The arbiter is trusted, because it decrypts the
    gradients without noise. The number of rows is public. Unless the protocol has
    ``statistics=public``, the means and standard deviations of the columns are sent as well, and
    the run has no finite epsilon.

    Parameters
    ----------
    epsilon : float
        Budget of the complete run for one row added or removed, in nats.
    delta : float
        Delta of the budget, in (0, 1).
    clip : float
        Bound on the Euclidean norm of a row of one party's standardised columns.
    parties : int
        Upper bound on the number of parties that have columns.
    """

    epsilon: float = positive()
    delta: float = share(1e-5)
    clip: float = positive(2.0)
    parties: int = whole(1, default=3)

    roles = frozenset({"arbiter"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES})
    handled_types = (Gradient,)
    info = DefenseInfo(bench_grid={"epsilon": (1.0, 4.0, 8.0)})

    @property
    def requirements(self) -> Requirements:
        """Bound on the norm of a party's rows, and bound on their contribution to a score."""
        return Requirements(row_bounds=(float(self.clip), SCORE_BOUND / self.parties))

    def claim(self) -> Guarantee:
        """Return (epsilon, delta)-DP of all decrypted gradients."""
        return ApproximateDP(
            float(self.epsilon), self.delta, unprotected=("rows",), trusted=("arbiter",)
        )

    def check(self, roles: Mapping[str, str], parameters: Mapping[str, Any]) -> None:
        """Refuse more parties than `parties`, and mini-batches.

        Raises
        ------
        UsageError
            If more than `parties` active and passive parties take part, or if ``batch`` is not 0.
        """
        n_parties = sum(role in ("active", "passive") for role in roles.values())
        if n_parties > self.parties:
            raise UsageError(
                f"dp-gd[parties={self.parties}]: {n_parties} have columns; set parties to "
                "this number"
            )
        if parameters.get("batch"):
            raise UsageError(
                f"batch={parameters['batch']}: an additional row would move other rows "
                "to other batches; dp-gd uses all rows in a round, batch=0"
            )

    def scale(self, schema: Schema, parameters: Mapping[str, Any]) -> tuple[float, float, int]:
        """Return the noise scale, the sensitivity and the grid of a decrypted gradient.

        Returns
        -------
        scale : float
            Standard deviation of the noise, in steps of the grid.
        sensitivity : float
            L2 sensitivity of one gradient to one row, in steps of the grid. It includes the
            rounding to the grid, which moves each coordinate by at most half a step.
        places : int
            Number of binary places of the grid. A step is ``2^-places``.
        """
        # Each party receives one gradient per round. The mu of k releases with Gaussian noise is
        # sqrt(k) times the mu of one (Dong, Roth and Su 2022), so that one release may have mu /
        # sqrt(k).
        mu = mu_of(self.epsilon, self.delta) / math.sqrt(parameters["rounds"] * self.parties)
        moved = self.clip * largest_residual(link_polynomial(parameters, bool(schema.classes)))
        places = max(0, _FINE - math.frexp(moved / mu)[1])
        # The longest gradient has an entry for every column of the schema, for every fake column,
        # and for the intercept.
        longest = len(schema.features) + parameters["fake"] + 1
        # Rounding moves two neighbouring gradients by up to half a step in opposite directions: one
        # step per coordinate, or sqrt(longest) in Euclidean norm.
        steps = moved * 2.0**places + math.sqrt(longest)
        return math.hypot(steps / mu, 2.0), steps, places

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the noise in the unit of the gradient."""
        scale, _, places = self.scale(schema, parameters)
        return {(Gradient, "values"): Gaussian(scale / 2.0**places)}

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Round a gradient to the grid, add noise, and record the privacy loss.

        Raises
        ------
        UsageError
            If the target is numeric, because its residuals are not bounded.
        """
        assert isinstance(message, Gradient)
        if not ctx.schema.classes:
            raise UsageError(
                "dp-gd bounds residuals of two classes; a numeric target is standardised by its "
                "own mean, which no noise covers"
            )
        scale, steps, places = self.scale(ctx.schema, ctx.parameters)
        # The sensitivity is computed for rounded values, so that rounding comes before the noise.
        on_grid = drop_places(unpack_integers(message.values), message.bits - places)
        noisy = to_python_integers(
            Gaussian(scale, integers=True).send(on_grid, ctx.rng("gradient-noise"))
        )
        ctx.record_release(
            "discrete-gaussian", l2=steps, scale=scale, what="Gradient", trusted="arbiter"
        )
        return replace(message, values=pack_integers(noisy), bits=places)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy loss of all decrypted gradients.

        Returns
        -------
        guarantee : ApproximateDP
            Its epsilon is infinite if no gradient was decrypted, or if a party sent means and
            standard deviations of its columns that were not declared. In the second case the field
            ``updates`` contains the epsilon of the gradients.
        """
        events = [e for e in transcript.events if e.what == "Gradient"]
        epsilon = compose_releases(events, self.delta) if events else math.inf
        statistics_sent = any(isinstance(d.message, ColumnScales) and not d.message.declared
                   for d in transcript)  # fmt: skip
        if statistics_sent:
            return ApproximateDP(math.inf, self.delta, unprotected=("columns", "rows"),
                                 trusted=("arbiter",), updates=epsilon)  # fmt: skip
        return ApproximateDP(epsilon, self.delta, unprotected=("rows",), trusted=("arbiter",))
