"""Defenses whose channel leaves nothing of any sum are refused before training."""

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
    """Refuse what sends all sums of gradients over so many rows alike.

    Raises `UsageError`.
    """
    for part in defense.parts:
        stated = part.channels(schema, parameters)
        for site in (Histogram, GlobalHistogram):
            law = stated.get((site, "sums"))
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
    """Tell whether what is left open is wider than all sums, or the largest are sent as 0."""
    least, most = law.spread(2)
    if np.isfinite([least, most]).all():
        return bool((most - least > 2 * largest).all())
    return law.deterministic and not law.send(np.stack([largest, [-1, 1] * largest])).any()


def _written(part: Defense) -> str:
    given = (f"{f.name}={getattr(part, f.name)}" for f in fields(part))  # type: ignore[arg-type]
    return f"{part.name}[{','.join(given)}]"
