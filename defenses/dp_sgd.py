"""Defense `dp-sgd`: clients clip the gradient of every row and add noise to the sum of each step.

Applies to networks that are trained by federated averaging. The noise multiplier is computed in
`fedtrees.privacy.gaussian_dp`. The clients compute with ``torch.func`` and numpy, or with opacus
(`fedtrees.neural.opacus_engine`).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Mechanism
from fedtrees.core.defense import (
    Channels,
    Context,
    Defense,
    DefenseInfo,
    ExampleStage,
    Requirements,
)
from fedtrees.core.guarantee import ApproximateDP, Guarantee
from fedtrees.core.messages import Reveal, Trait, permit_types_with
from fedtrees.core.parameters import one_of, positive, share, whole
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.core.transcript import Transcript
from fedtrees.messages.networks import NetworkUpdate
from fedtrees.neural.opacus_engine import OPACUS, noisy_sum
from fedtrees.privacy.accounting import compose_releases
from fedtrees.privacy.gaussian_dp import epsilons_of_events, multiplier

#: Libraries that clients compute with. The first one is the default.
ENGINES = ("torch", OPACUS)


@register.defense("dp-sgd")
@dataclass(frozen=True)
class DPSGD(Defense):
    """DP-SGD (Abadi et al. 2016) at every client.

    Each row is included in a batch independently (Poisson sampling). Its gradient is scaled down to
    Euclidean norm `clip` if it is longer, and the sum over the batch gets Gaussian noise. The
    messages of a client are therefore differentially private against every recipient. The noise
    multiplier is the smallest one whose (epsilon, delta) for all steps of the run is within the
    budget. It is computed by composing the privacy loss distributions of the steps
    (`fedtrees.privacy.gaussian_dp.multiplier`).

    The claim does not cover three kinds of information:

    - Sums over columns by which the inputs are standardised. With ``statistics=public`` none are
      sent.
    - Trees that the clients share before the network is trained (`fedxgbllr`). Only the network is
      private.
    - The number of rows of a client, from which the sampling rate, the number of steps and the
      noise follow, and which `fedavg-mlp` sends. A declared number of rows replaces it.

    Parameters
    ----------
    epsilon : float
        Budget of the complete run for one row added or removed, in nats.
    delta : float
        Delta of the budget, in (0, 1).
    clip : float
        Bound on the Euclidean norm of a row's gradient.
    declared_rows : int
        Public number of rows that every client uses in place of its true one. 0: clients use, and
        reveal, their true number of rows.
    engine : {"torch", "opacus"}
        Library of per-sample gradients, clipping, noise and Poisson sampling. ``torch``: our
        implementation, which draws noise and batches from a keystream with a key of 256 bits.
        ``opacus``: ``GradSampleModule``, ``DPOptimizer`` and ``UniformWithReplacementSampler``,
        whose generators have seeds of 63 bits. `spent` then also contains the epsilons of opacus'
        accountants. The noise is calibrated in the same way with both engines.
    """

    epsilon: float = positive()
    delta: float = share(1e-5)
    clip: float = positive(1.0)
    declared_rows: int = whole(0, default=0)
    engine: str = one_of(ENGINES, default=ENGINES[0])

    roles = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES, Reveal.COUNTS})
    handled_types = (NetworkUpdate,)
    permitted_types = permit_types_with({
        Trait.SUMMED_SECURELY: "exact sums over all clients; `spent` counts them as unprotected, "
        "and the protocol's statistics=public sends none",
        Trait.GROWN_ALONE: "the trees are trained and shared before. `spent` counts them as "
        "unprotected, and the claim covers only the network that is trained on their outputs",
    })  # fmt: skip
    example_stages = frozenset({"example-gradients"})
    info = DefenseInfo(bench_grid={"epsilon": (1.0, 4.0, 16.0)})

    @property
    def requirements(self) -> Requirements:
        """Poisson sampling, the engine of the batches, and the declared number of rows."""
        engine = OPACUS if self.engine == OPACUS else ""
        return Requirements(
            poisson_sampling=True, gradient_engine=engine, declared_rows=self.declared_rows
        )

    @property
    def extra_packages(self) -> tuple[str, ...]:
        """Modules of the extra ``neural`` that the chosen engine uses."""
        return ("dp_accounting", *(("torch", "opacus") if self.engine == OPACUS else ()))

    @property
    def _public(self) -> tuple[str, ...]:
        """Name of the number of rows in the claim, none if a declared number replaces it."""
        return () if self.declared_rows else ("rows",)

    def claim(self) -> Guarantee:
        """Return (epsilon, delta)-DP of all updates."""
        return ApproximateDP(float(self.epsilon), self.delta, unprotected=self._public)

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the subsampled Gaussian mechanism."""
        reason = (
            "rows are sampled by chance and scaled down to a norm, and Gaussian noise is added to "
            "the sum of their gradients"
        )
        return {("example-gradients", "rows"): Mechanism(reason)}

    def transform_examples(
        self, stage: ExampleStage, values: NDArray[Any], ctx: Context
    ) -> NDArray[Any]:
        """Clip the gradients of the rows in a batch, and append the noise of their sum as a row.

        Parameters
        ----------
        stage : ExampleStage
            Sampling rate, and number of steps of the run.
        values : float32 array, shape (n, P)
            Gradients of the rows in the batch.
        ctx : Context

        Returns
        -------
        values : float32 array, shape (n + 1, P), or (1, P) with ``engine=opacus``
            The training code sums the rows, so that the last one adds noise to the sum. Opacus
            returns only the noisy sum.
        """
        if stage.kind != "example-gradients":
            return values
        sigma = multiplier(float(self.epsilon), self.delta, stage.rate, stage.steps) * self.clip
        rng = ctx.rng("step-noise")
        ctx.record_release(
            "gaussian", l2=self.clip, scale=sigma, what="NetworkUpdate", rate=stage.rate
        )
        if self.engine == OPACUS:
            return noisy_sum(values, self.clip, sigma, rng)[None]
        noise = sigma * rng.standard_normal((1, values.shape[1]))
        # The noise is a further row, so that the caller can sum the batch without a special case.
        return np.concatenate([clipped(values, self.clip), noise.astype(np.float32)])

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy loss of all steps.

        Returns
        -------
        guarantee : ApproximateDP
            Its epsilon is infinite if no step was taken, or if sums over columns or trees were
            sent. In the second case the field ``updates`` contains the epsilon of the steps. With
            ``engine=opacus`` the fields ``prv`` and ``rdp`` contain the epsilons of the steps by
            the accountants of opacus.
        """
        events = [e for e in transcript.events if e.what == "NetworkUpdate"]
        epsilon = compose_releases(events, self.delta) if events else math.inf
        opacus_epsilons: dict[str, Any] = {}
        if events and self.engine == OPACUS:
            opacus_epsilons = epsilons_of_events(events, self.delta)._asdict()
        names = {Trait.SUMMED_SECURELY: "columns", Trait.GROWN_ALONE: "trees"}
        # The traits of all sent messages show whether exact sums or trees were among them.
        sent_traits = {trait for d in transcript for trait in d.message.traits}
        exact_releases = {names[trait] for trait in sent_traits & {*names}}
        unprotected = tuple(sorted({*exact_releases, *self._public}))
        if exact_releases:
            return ApproximateDP(
                math.inf, self.delta, unprotected=unprotected, updates=epsilon, **opacus_epsilons
            )
        return ApproximateDP(epsilon, self.delta, unprotected=unprotected, **opacus_epsilons)


def clipped(gradients: NDArray[np.float32], bound: float) -> NDArray[np.float32]:
    """Scale gradients down to a norm, as ``opacus.optimizers.DPOptimizer`` does.

    Parameters
    ----------
    gradients : float32 array, shape (n, P)
    bound : float
        Largest Euclidean norm of a row of the result.

    Returns
    -------
    gradients : float32 array, shape (n, P)
        A row with a value that is not finite becomes 0.
    """
    # A gradient that is not finite has no direction. Weights that another party chose can cause it
    # for single rows, so that it must not exceed the bound either.
    finite = np.isfinite(gradients).all(axis=1, keepdims=True)
    gradients = np.where(finite, gradients, np.float32(0))
    with np.errstate(over="ignore"):  # a norm beyond single precision scales its row to 0
        norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    # Opacus adds 1e-6 to the norm. The clipped norm is therefore slightly below the bound.
    factor = np.minimum(np.float32(bound) / (norms + np.float32(1e-6)), np.float32(1))
    return np.asarray(gradients * factor, dtype=np.float32)
