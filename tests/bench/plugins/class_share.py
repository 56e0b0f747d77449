"""A new type of claim and its metric: the share of the victims' rows that have the last class.

The attacks that return this claim are in another file, `class_share_attacks`, because the code of
an attack is never imported in the process that contains the truth.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.claims import Claim
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.metrics.metric import Metric, Score


@dataclass(frozen=True, eq=False)
class ClassShare(Claim):
    """Share of the victims' rows that have the last class."""

    share: float


@register.metric("plugin-class-share")
class ClassShareMetric(Metric[float]):
    """Score a claimed share by its absolute error."""

    of: ClassVar[type[Claim]] = ClassShare
    before_training: ClassVar[bool] = True
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("share_error", "error of the share of a class", best=0.0, klass="group",
                phrase="estimate the share of a class up to {}"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("share_error",)

    def truth(self, case):
        labels = [data.y for data in case.victims.values() if data.y is not None]
        if not labels:
            return None
        return float((np.concatenate(labels) == len(case.schema.classes) - 1).mean())

    def score(self, claims, truth):
        return [Score("share_error", abs(claims[0].share - truth))]
