"""Check before training that a defense leaves information in the gradient sums."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from fedtrees.core.channel import Channel
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Defense
from fedtrees.core.errors import UsageError
from fedtrees.core.schema import Schema
from fedtrees.messages.boosting import GlobalHistogram, Histogram
from fedtrees.trees.boosted.losses import objective_of


def check_channels(
    defense: Composition, schema: Schema, parameters: Mapping[str, Any], rows: int
) -> None:
    """Refuse a defense that maps all possible sums of gradients to the same value.

    Parameters
    ----------
    defense : Composition
        Defenses of the run.
    schema : Schema
        Columns and target.
    parameters : mapping of str to object
        Public parameters of the protocol.
    rows : int
        Number of training rows. It bounds all sums.

    Raises
    ------
    UsageError
        If a defense sends all sums alike.
    """
    for part in defense.parts:
        channels = part.channels(schema, parameters)
        for site in (Histogram, GlobalHistogram):
            law = channels.get((site, "sums"))
            # A change without a known distribution cannot be checked.
            if not isinstance(law, Channel):
                continue
            bounds = objective_of(parameters.get("objective"), schema.classes).bounds
            largest = rows * np.asarray(bounds, dtype=np.float64)
            if np.isfinite(largest).all() and _erases(law, largest):
                raise UsageError(
                    f"{_written(part)} sends all sums alike: over {rows} rows, gradients add up to "
                    f"{largest[0]:g} at most and hessians to {largest[1]:g}; give less"
                )


def _erases(law: Channel, largest: np.ndarray[Any, np.dtype[np.float64]]) -> bool:
    """Return whether the channel's uncertainty exceeds all sums, or maps the largest ones to 0."""
    low, high = law.spread(2)
    if np.isfinite([low, high]).all():
        return bool((high - low > 2 * largest).all())
    return law.deterministic and not law.send(np.stack([largest, [-1, 1] * largest])).any()


def _written(part: Defense) -> str:
    parameters = (f"{f.name}={getattr(part, f.name)}" for f in fields(part))  # type: ignore[arg-type]
    return f"{part.name}[{','.join(parameters)}]"
