"""Public parameters that the horizontal histogram protocols share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError, check_known
from fedtrees.core.messages import Message
from fedtrees.core.parameters import flag, whole
from fedtrees.core.schema import Schema
from fedtrees.core.streams import Streams
from fedtrees.messages.horizontal import (
    CUT_MESSAGES,
    SOME_CUT_MESSAGES,
    BaseScore,
    Histogram,
    HistogramRequest,
    LabelSums,
    LabelSumsRequest,
    StopBoosting,
    ValidationLoss,
    ValidationRequest,
)
from fedtrees.protocols.base import ProtocolInfo
from fedtrees.protocols.cut_points import CUT_METHODS
from fedtrees.protocols.settings import BoostingProtocol
from fedtrees.trees.boosted.boosting import dropped_rows


@dataclass(frozen=True, kw_only=True)
class HistogramProtocol(BoostingProtocol):
    """Boosted trees grown from summed histograms: parameters of the engine, and the following.

    A `base_score` of None is the mean label from a secure sum (as estimated by XGBoost >= 2). A
    number such as 0.5 reveals nothing.

    Parameters
    ----------
    cuts : {"sketch", "xgboost", "equal-width", "public"}
        Cut points from merged client sketches (evenly spaced in rank, or pruned as in XGBoost),
        equal-width cut points from the pooled ranges (FedTree), or equal-width cut points from the
        declared public ranges, which reveal nothing.
    enable_categorical : bool
        Split categorical features by sets of categories, as XGBoost does. Each needs declared
        category names. If False, their codes are numbers and split by thresholds.
    early_stopping_rounds : int
        Stop after this number of rounds without a smaller loss on validation rows, and return the
        model of the best round. 0 for no early stopping. Every round then needs one secure sum of
        losses.
    validation_fraction : float
        Probability with which each row of a client is a validation row, in (0, 1).
    """

    cuts: str = "sketch"
    enable_categorical: bool = flag(False)
    early_stopping_rounds: int = whole(0, default=0)
    validation_fraction: float = 0.1

    info = ProtocolInfo(
        message_types=(
            *CUT_MESSAGES, LabelSumsRequest, LabelSums, BaseScore, HistogramRequest,
            Histogram, ValidationRequest, ValidationLoss, StopBoosting,
        ),
        conditional_types={
            **SOME_CUT_MESSAGES,
            **dict.fromkeys(
                (ValidationRequest, ValidationLoss, StopBoosting), "early_stopping_rounds is not 0"
            ),
        },
        capabilities=frozenset({"transform_examples", "allowed_splits", "gradient_clip"}),
    )  # fmt: skip
    summed_types: ClassVar[tuple[type[Message], ...]] = (LabelSums, ValidationLoss)
    cut_methods: ClassVar[tuple[str, ...]] = CUT_METHODS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known("cuts", self.cuts, self.cut_methods)
        share = self.validation_fraction
        if not isinstance(share, float) or not 0 < share < 1:
            raise UsageError(f"validation_fraction={share!r}: give a number between 0 and 1")

    def validation_rows(self, n: int, streams: Streams) -> NDArray[np.bool_]:
        """Return which of a client's rows are validation rows, bool, shape (n,).

        Rows are drawn independently, so that a further row does not change the draw of any other
        row. The privacy accounting of `laplace-hist` relies on this.

        Parameters
        ----------
        n : int
            Number of rows of the client.
        streams : Streams
            Randomness of the client.
        """
        if not self.early_stopping_rounds:
            return np.zeros(n, dtype=bool)
        return np.asarray(streams.rng("validation").random(n) < self.validation_fraction)

    def training_rows(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return the rows of a round: neither validation rows nor left out by subsampling.

        Parameters
        ----------
        n : int
            Number of rows of the client.
        streams : Streams
            Randomness of the client.
        round : int
            Round of boosting.
        defense : Composition or None
            Not used.
        """
        dropped = dropped_rows(n, self.subsample, streams, round)
        if dropped is None and not self.early_stopping_rounds:
            return None
        out = self.validation_rows(n, streams)
        # Validation rows are excluded from every round, dropped rows only from this one.
        return ~out if dropped is None else ~(out | dropped)

    def category_counts(self, schema: Schema) -> NDArray[np.int32]:
        """Return the number of categories of each feature that is split by categories, 0 otherwise.

        Raises
        ------
        DataError
            If a categorical feature does not declare its categories.
        """
        native = schema.categorical & self.enable_categorical
        counts = np.array([len(f.categories) for f in schema.features], dtype=np.int32)
        # The number of categories must be public, because it determines the bins of all clients.
        for k in np.flatnonzero(native & (counts == 0)):
            raise DataError(
                f"feature {schema.names[k]!r} is categorical and declares no categories: name them "
                "in the schema, or leave out enable_categorical"
            )
        return np.where(native, counts, 0).astype(np.int32)
