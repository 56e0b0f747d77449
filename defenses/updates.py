"""Defenses that change the updates of a network without a privacy budget."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, Channel, ConditionalOmission
from fedtrees.core.defense import Channels, Context, Defense, DefenseInfo
from fedtrees.core.deterministic_channels import Rounding
from fedtrees.core.errors import check_share
from fedtrees.core.guarantee import Structural
from fedtrees.core.messages import Message, Reveal, Trait, permit_types_with
from fedtrees.core.parameters import checked, positive
from fedtrees.core.registry import register
from fedtrees.core.schema import Schema
from fedtrees.messages.networks import NetworkUpdate
from fedtrees.privacy.noise import Gaussian


class ChangedUpdates(Defense):
    """Base of defenses that change every coordinate of a mean gradient or local update."""

    roles = frozenset({"client"})
    protects = frozenset({Reveal.LABELS, Reveal.FEATURES})
    handled_types = (NetworkUpdate,)
    permitted_types = permit_types_with(
        {
            Trait.SUMMED_SECURELY: "summed securely by the protocol, and the opened sum is exact",
            Trait.GROWN_ALONE: "not covered: trees are shared before the network is trained",
        }
    )

    def transform_message(self, message: Message, ctx: Context) -> Message:
        """Change the mean of an update. The zeros of clients without rows stay unchanged."""
        assert isinstance(message, NetworkUpdate)
        # An update is the mean times the number of rows, because the server averages over all rows.
        rows = np.float32(message.rows[0])
        if not rows:
            return message
        changed = self.changed(message.update / rows, ctx)
        return replace(message, update=np.asarray(changed * rows, dtype=np.float32))

    @property
    @abstractmethod
    def law(self) -> Change:
        """Change that is applied to a mean."""

    def channels(self, schema: Schema, parameters: Mapping[str, Any]) -> Channels:
        """State the change of a mean."""
        return {(NetworkUpdate, "update"): self.law}

    def changed(self, mean: NDArray[np.float32], ctx: Context) -> NDArray[Any]:
        """Return the changed mean, shape (P,)."""
        assert isinstance(self.law, Channel)
        return self.law.send(mean, ctx.rng("update-noise"))


@register.defense("gradient-noise")
@dataclass(frozen=True)
class GradientNoise(ChangedUpdates):
    """Add Gaussian noise to every coordinate of a client's mean gradient, or local update.

    This is the defense of Vero et al. (2023, Sec. 5.3). Gradients are not clipped, so that the
    noise does not give a privacy budget. Use `dp-sgd` for one.

    Parameters
    ----------
    scale : float
        Standard deviation of the noise, in the unit of the gradient.
    """

    scale: float = positive()
    info = DefenseInfo(bench_grid={"scale": (0.001, 0.01, 0.1)})

    @property
    def law(self) -> Change:
        """Gaussian noise."""
        return Gaussian(float(self.scale))


@register.defense("gradient-rounding")
@dataclass(frozen=True)
class GradientRounding(ChangedUpdates):
    """Round every coordinate of a client's mean gradient, or local update.

    Parameters
    ----------
    step : float
        Distance of the rounded values, in the unit of the gradient.
    """

    step: float = positive()
    guarantee = Structural()
    info = DefenseInfo(bench_grid={"step": (0.001, 0.01)})

    @property
    def law(self) -> Change:
        """Rounding to the nearest multiple."""
        return Rounding(float(self.step))


@register.defense("top-k")
@dataclass(frozen=True)
class TopK(ChangedUpdates):
    """Send the largest coordinates of a client's mean gradient or local update, and 0 elsewhere.

    Gradient sparsification (Aji and Heafield 2017), without the accumulation of the coordinates
    that were not sent.

    Parameters
    ----------
    share : float
        Share of the coordinates that are sent, in (0, 1). At least one is sent.
    """

    share: float = checked(check_share)
    guarantee = Structural()
    info = DefenseInfo(bench_grid={"share": (0.1, 0.01)})

    @property
    def law(self) -> Change:
        """Bound on coordinates that are not sent: the smallest one that is sent."""
        return ConditionalOmission(
            "coordinates that are 0 are at most as large as the smallest other one"
        )

    def changed(self, mean: NDArray[np.float32], ctx: Context) -> NDArray[Any]:
        """Replace all but the largest coordinates in absolute value by 0."""
        # A stable order makes the choice among equal coordinates reproducible.
        n_sent = max(int(self.share * len(mean)), 1)
        order = np.argsort(-np.abs(mean), kind="stable")
        sent = np.zeros_like(mean)
        sent[order[:n_sent]] = mean[order[:n_sent]]
        return sent
