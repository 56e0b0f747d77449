"""A claim of one's own: how many of the victims' rows are of the last class.

A claim and its metric. The attacks that give it are in a file of their own, `class_share_attacks`:
an attack's code is imported only where no truth is.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedtrees.core.guess import Claim
from fedtrees.core.registry import register
from fedtrees.core.results import Measure
from fedtrees.metrics.metric import Metric, Score


@dataclass(frozen=True, eq=False)
class ClassShare(Claim):
    """The share of the victims' rows that are of the last class."""

    share: float


@register.metric("plugin-class-share")
class ClassShareMetric(Metric[float]):
    """How far the share is off."""

    of: ClassVar[type[Claim]] = ClassShare
    before_training: ClassVar[bool] = True
    measures: ClassVar[tuple[Measure, ...]] = (
        Measure("share_error", "error of the share of a class", best=0.0, klass="group",
                phrase="tell the share of a class but for {}"),
    )  # fmt: skip
    main: ClassVar[tuple[str, ...]] = ("share_error",)

    def truth(self, case):
        labels = [held.y for held in case.victims.values() if held.y is not None]
        if not labels:
            return None
        return float((np.concatenate(labels) == len(case.schema.classes) - 1).mean())

    def score(self, claims, truth):
        return [Score("share_error", abs(claims[0].share - truth))]
