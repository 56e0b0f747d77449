"""Defenses `laplace-hist` and `laplace-gradient`: Laplace noise on sums or on single gradients.

In `laplace-hist`, clients and passive parties add noise to their histograms, by the rule of
Di Gennaro et al. (2025, Appendix B.1.1) or calibrated to the complete run.
`fedtrees.privacy.accounting` composes the privacy loss. The noise is discrete, because sums are
fixed-point integers, but it is recorded as ``laplace``: its probabilities are proportional to
``exp(-|k| / scale)`` on the grid, so that the ratio for two sums that differ by l1 is at most
``exp(l1 / scale)``, as for continuous noise. In `laplace-gradient`, each row's gradient
gets noise and row counts stay exact. This is FedTree's mechanism in the form that Di Gennaro et al.
(2025) attacked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Removal
from fedtrees.core.defense import (
    ChannelDefense,
    Channels,
    Context,
    Defense,
    DefenseInfo,
    ExampleStage,
    Requirements,
)
from fedtrees.core.errors import UsageError
from fedtrees.core.guarantee import Guarantee, PureDP
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.parameters import flag, positive
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.horizontal import (
    SUMMARIES,
    FeatureRanges,
    FeatureSketch,
    GridCounts,
    Histogram,
    LabelSums,
    ValidationLoss,
    exact_summaries,
)
from fedtrees.messages.vertical import BinCounts, BinSums, OpenedBinSums, RoutedRows, RoutesOfRows
from fedtrees.privacy.accounting import (
    compose_releases,
    histogram_sensitivity,
    trusted_with,
    with_adversaries,
)
from fedtrees.privacy.noise import Laplace
from fedtrees.trees.boosted.histogram import LOSS_BITS
from fedtrees.trees.boosted.losses import LOSS_BOUND, Objective, clipped_bounds, objective_of

_EXEMPT = (
    "not covered by the published rule and exact (a sketch is the column itself); `spent` counts "
    "it as unprotected"
)


_ROUTES = "exact, as splits are; `spent` counts routes as unprotected"


@register.defense("laplace-hist")
@dataclass(frozen=True)
class LaplaceHistogram(ChannelDefense):
    """Add discrete Laplace noise to all gradient and hessian sums of clients and passive parties.

    The published rule (Di Gennaro et al. 2025, Appendix B.1.1) clips g to `clip` and h to 2 `clip`,
    and adds Laplace(2 clip / epsilon) to each histogram element. Its epsilon covers *one element of
    one histogram*, which the claim writes as ``unit=histogram``. The privacy loss of the complete
    run is the sum over all trees, levels and features. With ``calibrated=true`` the noise is scaled
    so that this sum is `epsilon`.

    **Vertical training.** Passive parties add up encrypted gradients, which the active party
    computed. The sensitivity of these sums is bounded only if the gradients are in the range of the
    clipping, which a passive party cannot see. It therefore receives a range proof
    (`Requirements.range_proofs`), for which fedtrees assumes an ideal functionality. With
    ``proven=false`` there is no range proof, and the bound holds only if the active party is
    honest.

    Replacing a row's value in a column moves the row from one bin to another, so that two bins
    change. The directions of rows at splits are sent without noise, so that a vertical run has no
    finite epsilon.

    Parameters
    ----------
    epsilon : float
        Budget in nats: of one histogram element, or of the complete run if `calibrated`.
    clip : float
        Bound R on a row's absolute gradient. Its hessian is bounded by 2R. Both are also bounded by
        the loss itself, for example by 1 and 1/4 for two classes.
    calibrated : bool
        Scale the noise to the privacy loss of the complete run.
    proven : bool
        Vertical training only: every row's ciphertext comes with a range proof. The name of the
        field of `Requirements` is ``range_proofs``.
    """

    epsilon: float = positive()
    clip: float = positive(1.0)
    calibrated: bool = flag(False)
    proven: bool = flag(True)

    randomness = "histogram-noise"
    roles = frozenset({"client", "passive"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS})
    handled_types = (Histogram, ValidationLoss, OpenedBinSums)
    permitted_types = {
        **dict.fromkeys((FeatureSketch, FeatureRanges, GridCounts, LabelSums), _EXEMPT),
        **dict.fromkeys((BinCounts, RoutedRows, RoutesOfRows), _ROUTES),
        BinSums: "encrypted; its content was transformed as `OpenedBinSums`",
    }
    info = DefenseInfo(bench_grid={"epsilon": (1.0, 8.0, 64.0)})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibrated and not self.proven:
            raise UsageError(
                "calibrated=true with proven=false: proven=false concerns vertical training only, "
                "and calibrated=true horizontal training only; give one of them"
            )

    @property
    def requirements(self) -> Requirements:
        """Clip the gradient of every row, with a proof in vertical training."""
        return Requirements(
            gradient_clip=float(self.clip), bounded_hessian=True, range_proofs=self.proven
        )

    @property
    def applies_to(self) -> tuple[type[Message], ...]:  # type: ignore[override]
        """Types of which one must be sent for the defense to apply.

        The calibrated noise excludes vertical training, in which the exact routes of rows are sent.
        """
        if not self.proven:
            return (OpenedBinSums,)
        return (Histogram,) if self.calibrated else (Histogram, OpenedBinSums)

    def claim(self) -> Guarantee:
        """Return pure DP of one histogram element as published, or of a record if calibrated."""
        unit = "record" if self.calibrated else "histogram"
        return PureDP(epsilon=float(self.epsilon), unit=unit)

    def scale(self, schema: Schema, parameters: Mapping[str, Any]) -> float:
        """Return the Laplace scale in the unit of the gradient. It is public."""
        if not self.calibrated:
            return 2.0 * self.clip / self.epsilon
        # A round grows one tree per output, for example one per class.
        trees = parameters["trees"] * _objective(schema, parameters).n_outputs
        return float(trees * self._tree_sensitivity(schema, parameters) / self.epsilon)

    def _tree_sensitivity(self, schema: Schema, parameters: Mapping[str, Any]) -> float:
        """Return the L1 sensitivity of one tree: the histograms of all levels, and the root total.

        It also covers trees that are grown best node first, because a row is still in one node per
        level.
        """
        bounds = clipped_bounds(_objective(schema, parameters), self.clip)
        return histogram_sensitivity(_sums_per_row(schema, parameters), *bounds)

    def _loss_scale(self, parameters: Mapping[str, Any]) -> float:
        """Return the Laplace scale of the validation loss and of the number of validation rows."""
        # One loss is sent per round. A row changes it by at most LOSS_BOUND, and the number of rows
        # by 1.
        rounds = parameters["trees"] if self.calibrated else 1
        return float(rounds * (LOSS_BOUND + 1.0) / self.epsilon)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the noise on sums of bins and nodes, and on the validation loss."""
        law = Laplace(self.scale(schema, parameters))
        loss_law = Laplace(self._loss_scale(parameters))
        return {
            (Histogram, "sums"): law,
            (Histogram, "totals"): law,
            (OpenedBinSums, "sums"): law,
            (ValidationLoss, "sums"): loss_law,
        }

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Add noise to the sums of a message, and record the privacy loss."""
        if isinstance(message, ValidationLoss):
            return self._noisy_loss(message, ctx)
        for bound, count in self._releases(message, ctx):
            scale, what = self.scale(ctx.schema, ctx.parameters), type(message).__name__
            ctx.record_release("laplace", l1=bound, scale=scale, count=count, what=what)
        return super().transform_message(message, ctx)

    def _releases(self, message: Message, ctx: Context) -> Iterator[tuple[float, int]]:
        """Yield the sensitivity and the number of noisy sums that a message pays for.

        The releases of all levels of a tree are entered once, with its root. The depth that the
        tree reaches depends on the data, so that `max_depth` levels are charged.
        """
        bounds = clipped_bounds(_objective(ctx.schema, ctx.parameters), self.clip)
        if isinstance(message, Histogram) and message.totals.size:
            # Only the histogram of a root contains the totals of the node.
            yield from ((bound, _sums_per_row(ctx.schema, ctx.parameters)) for bound in bounds)
        elif isinstance(message, OpenedBinSums) and 0 in message.nodes:
            # A row is in one bin of each column at every level. Replacing its value moves it from
            # one bin to another, which changes both (factor 2).
            count = int(ctx.parameters["max_depth"]) * len(message.columns)
            yield from ((2 * bound, count) for bound in bounds)

    def _noisy_loss(self, message: ValidationLoss, ctx: Context) -> ValidationLoss:
        """Add noise to the validation loss and to the number of validation rows."""
        scale = self._loss_scale(ctx.parameters)
        # The loss is sent in multiples of 2^-LOSS_BITS.
        law = Laplace(scale).in_units_of(2.0**LOSS_BITS)
        steps = np.ldexp(message.sums, LOSS_BITS).astype(np.int64)
        noisy = law.send(steps, ctx.rng("loss-noise")).astype(float)
        ctx.record_release("laplace", l1=LOSS_BOUND + 1.0, scale=scale, what="ValidationLoss")
        return replace(message, sums=np.ldexp(noisy, -LOSS_BITS))

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy loss of histograms, validation losses and summaries for cut points.

        Returns
        -------
        guarantee : PureDP
            Its epsilon is infinite if no histogram was sent, or if exact summaries, an exact base
            score or exact routes of rows were sent. The field ``unprotected`` names them.
        """
        # Sums of passive parties exist in vertical training only, where exact routes are sent, too.
        bins = [e for e in transcript.events if e.what == "OpenedBinSums"]
        if bins:
            return PureDP(math.inf, histograms=compose_releases(bins), unprotected=("routes",))
        histogram_events = [e for e in transcript.events if e.what == "Histogram"]
        loss_events = [e for e in transcript.events if e.what == "ValidationLoss"]
        # A row is in the training set or in the validation set, by a draw that does not depend on
        # its values. It therefore pays for the histograms or for the losses, and in both cases for
        # the cut points.
        cut_events = [e for e in transcript.events if e.what in {t.__name__ for t in SUMMARIES}]
        epsilon = max(
            compose_releases([*histogram_events, *cut_events]),
            compose_releases([*loss_events, *cut_events]),
        )
        unprotected = exact_releases(transcript)
        if not histogram_events:
            return PureDP(epsilon=math.inf, unprotected=("everything",))
        if unprotected:
            return PureDP(math.inf, histograms=epsilon, unprotected=tuple(unprotected))
        return with_adversaries(
            PureDP(epsilon=epsilon, trusted=trusted_with(cut_events)),
            [*histogram_events, *cut_events],
        )


def exact_releases(transcript: Transcript) -> list[str]:
    """Name exact information that was sent before the first tree: cut points, base score."""
    exact_cuts = ["cuts"] if exact_summaries(transcript) else []
    exact_start = any(isinstance(d.message, LabelSums) for d in transcript)
    return exact_cuts + (["base-score"] if exact_start else [])


def _objective(schema: Schema, parameters: Mapping[str, Any]) -> Objective:
    return objective_of(parameters.get("objective"), schema.classes)


def _sums_per_row(schema: Schema, parameters: Mapping[str, Any]) -> int:
    """Return the number of gradient sums of a tree that contain a row.

    These are one per level and feature, and the total of the root.
    """
    return int(parameters["max_depth"] * len(schema.features) + 1)


# FedTree reserves half of a tree's budget for its leaves, and half for the choice of splits by the
# exponential mechanism. The published code does not implement the latter.
_HALVES = 2.0


@register.defense("laplace-gradient")
@dataclass(frozen=True)
class LaplaceGradient(Defense):
    """Add discrete Laplace noise to each row's gradient, once per tree, and set each hessian to 1.

    FedTree (Li et al. 2023) as Di Gennaro et al. (2025) extended it to horizontal data. Before each
    of the T trees, every row's gradient g is clipped to [-R, R] and gets noise of the distribution
    Laplace(2R / e) with e = epsilon / 2T. All sums of the tree then contain the same noisy g. We
    follow the authors' code. Their paper (Appendix B.1.1) describes noise on each histogram element
    of g and h, which is `laplace-hist`.

    Hessians get no noise. They are the constant 1, so that a leaf value is ``-eta G / (N +
    lambda)``, and the numbers of rows N are exact. The only remaining guarantee is label-DP. For
    two classes, R = 1 and a given base score it is epsilon / 4, because a label changes g by 1 in
    each of T trees. Use `laplace-hist` with ``calibrated=true`` to protect rows.

    Parameters
    ----------
    epsilon : float
        Budget of the complete run as published, in nats.
    clip : float
        Bound R on a row's absolute gradient.
    """

    epsilon: float = positive()
    clip: float = positive(1.0)

    roles = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS})
    handled_types = (Histogram,)
    permitted_types = dict.fromkeys((FeatureSketch, FeatureRanges, GridCounts, LabelSums), _EXEMPT)
    example_stages = frozenset({"gradients"})
    info = DefenseInfo(bench_grid={"epsilon": (1.0, 8.0, 64.0)})

    @property
    def requirements(self) -> Requirements:
        """Clip the gradient of every row; its hessian becomes 1."""
        return Requirements(gradient_clip=float(self.clip), unit_hessian=True)

    def claim(self) -> Guarantee:
        """Return pure DP of the complete run, as published."""
        return PureDP(epsilon=float(self.epsilon))

    def scale(self, schema: Schema, parameters: Mapping[str, Any]) -> float:
        """Return the Laplace scale in the unit of the gradient. It is public."""
        # A round grows one tree per output, for example one per class.
        trees = parameters["trees"] * _objective(schema, parameters).n_outputs
        per_tree = self.epsilon / (_HALVES * trees)
        return float(2.0 * self.clip / per_tree)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the noise on a row's gradient, and that hessians are 1."""
        law = Laplace(self.scale(schema, parameters))
        return {("gradients", "g"): law, ("gradients", "h"): Removal(1.0)}

    def transform_examples(
        self, stage: ExampleStage, values: NDArray[Any], ctx: Context
    ) -> NDArray[Any]:
        """Add noise to the gradients, set the hessians to 1, and record the privacy loss.

        Parameters
        ----------
        stage : ExampleStage
            Other kinds than ``gradients`` are returned unchanged.
        values : int64 array, shape (K, n, 2)
            Clipped gradients and hessians in fixed point, for the K trees of a round.
        ctx : Context

        Returns
        -------
        values : int64 array, shape (K, n, 2)
        """
        if stage.kind != "gradients":
            return values
        units, bits = values, stage.bits
        scale = self.scale(ctx.schema, ctx.parameters)
        # The noise is drawn in fixed-point units, because sums of integers are exact.
        law = Laplace(scale).in_units_of(np.ldexp(1.0, bits[0]))
        g = law.send(units[..., 0], ctx.rng("gradient-noise"))
        bound, _ = clipped_bounds(_objective(ctx.schema, ctx.parameters), self.clip)
        # A round grows one tree per output. Neighbouring tables differ in one row's gradient, which
        # may be replaced by any other.
        for _ in units:
            ctx.record_release("laplace", l1=2.0 * bound, scale=scale, what="gradients")
        return np.stack([g, np.full_like(g, 1 << bits[1])], axis=-1)

    def spent(self, transcript: Transcript) -> Guarantee:
        """Return an infinite epsilon, because counts are exact, and the epsilon of the gradients.

        The field ``histograms`` contains the latter. It holds for a row whose gradient is replaced
        by any other gradient and whose bins stay the same.
        """
        epsilon = compose_releases(e for e in transcript.events if e.what == "gradients")
        # Hessians of 1 make the hessian sums equal to the numbers of rows.
        unprotected = ("counts", *exact_releases(transcript))
        return PureDP(math.inf, histograms=epsilon, unprotected=unprotected)
