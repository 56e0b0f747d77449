"""Protocol `horizontal-regression`: clients take local steps, and their weights are averaged."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.core.network import Network
from fedtrees.core.parameters import whole
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, check_equal, refuse
from fedtrees.core.schema import Schema, Table
from fedtrees.linear import (
    SIGMOID_BITS,
    build_design,
    compute_gradient,
    drop_places,
    from_fixed_point,
    take_step,
    to_python_integers,
)
from fedtrees.messages.regression import (
    AverageWeights,
    CommonScales,
    LocalWeights,
    Moments,
    MomentsRequest,
    RegressionWeights,
    WeightsRequest,
)
from fedtrees.protocols.base import ENCODED_FILE, Coordinator, Protocol, ProtocolInfo, Seat
from fedtrees.protocols.regression.settings import RegressionParams, check_weightless

#: Largest number of binary places of int64 weights. It leaves room for the sum of weights up to
#: 2^10 over a thousand clients.
MOST_BITS = 42


@register.protocol("horizontal-regression")
@dataclass(frozen=True, kw_only=True)
class HorizontalRegression(RegressionParams, Protocol):
    """Linear or logistic regression over rows (Li et al. 2022, Sec. 2.2).

    In every round each client takes one gradient step on all its rows, and a secure sum averages
    the weights of all clients with equal weight. Columns are standardised by the moments of all
    rows, also from a secure sum. Logistic regression uses the first-order Taylor polynomial of the
    sigmoid, as in the vertical protocol.
    """

    bits: int = whole(8, MOST_BITS, default=40)
    info = ProtocolInfo(
        message_types=(
            MomentsRequest, Moments, CommonScales, WeightsRequest, LocalWeights,
            AverageWeights,
        ),
        model_file=ENCODED_FILE,
        default_parties=2,  # with more clients the average reveals less about each
        example_dataset="breast-cancer[rows=40]",  # each client has at most as many rows as weights
    )  # fmt: skip
    summed_types: ClassVar[tuple[type[Message], ...]] = (Moments, LocalWeights)

    def check(self, schema: Schema) -> None:
        """Refuse more than two classes."""
        self.kind_for(schema)

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse weights, a client without rows, and infinite values."""
        self.check(schema)
        check_weightless(name, local_data)
        if not len(local_data):
            raise DataError(f"{name!r} has no row; leave it out")
        if np.isinf(local_data.X).any():
            raise DataError(f"{name!r} has an infinite value; leave it missing")

    def create_party(self, seat: Seat) -> Party:
        """Create the server or a client."""
        return (AveragingServer if seat.role == "server" else RegressionClient)(seat, self)


def columns_of(table: Table, classes: bool) -> NDArray[np.float64]:
    """Return columns and target, float64, shape (n, d + 1).

    The target of a classification is NaN here, because it is not standardised.
    """
    y = np.full(len(table), np.nan) if classes else table.y.astype(np.float64)
    return np.column_stack([table.X.astype(np.float64), y])


class RegressionClient(Party):
    """A client that answers with sums and weights."""

    role = "client"

    def __init__(self, seat: Seat, protocol: HorizontalRegression) -> None:
        super().__init__(seat.name)
        self.data, self.params, self.schema = seat.table, protocol, seat.schema
        self.moments, self.standardised = 0, Once()
        self.steps, self.averages = Turns(protocol.rounds), Turns(protocol.rounds)

    @handles(
        MomentsRequest,
        around="answered twice: around 0, then around any finite values",
    )
    def sum(self, message: MomentsRequest) -> Moments:
        """Answer with the sums over the client's rows, twice: for the mean and the deviation."""
        around, width = message.around, self.data.X.shape[1] + 1
        if around.shape != (width,) or not np.isfinite(around).all():
            refuse(message, "around", f"there are {width} finite values, of columns and target")
        # Further centres would reveal more than mean and deviation.
        if self.moments > 1 or (self.moments == 0 and around.any()):
            refuse(message, "around", "moments are asked for twice, and around 0 the first time")
        self.moments += 1
        values = columns_of(self.data, bool(self.schema.classes))
        present = ~np.isnan(values)
        total = np.where(present, values, 0.0).sum(axis=0)
        squares = np.where(present, values - message.around, 0.0) ** 2
        return Moments(present.sum(axis=0).astype(np.float64), total, squares.sum(axis=0))

    @handles(CommonScales, mean="once, any finite values", scale="as `mean`")
    def begin(self, message: CommonScales) -> None:
        """Standardise the client's rows, once."""
        width = self.data.X.shape[1] + 1
        for name in ("mean", "scale"):
            values_sent = getattr(message, name)
            if values_sent.shape != (width,) or not np.isfinite(values_sent).all():
                refuse(message, name, f"there are {width} finite values, of columns and target")
        self.standardised.take(message)
        p = self.params
        values = columns_of(self.data, bool(self.schema.classes))
        if self.schema.classes:
            values[:, -1] = self.data.y
        self.design, self.target = build_design(
            values, message.mean, message.scale, p.bits, p.intercept
        )
        self.weights = to_python_integers(np.zeros(self.design.shape[1], dtype=np.int64))
        self.logistic = p.kind_for(self.schema) == "logistic"

    @handles(WeightsRequest, round="in order, each once, after the average of the round before")
    def step(self, message: WeightsRequest) -> LocalWeights:
        """Answer with the weights after a local step."""
        if not self.standardised.answered or self.averages.last != self.steps.last:
            refuse(message, "round", "the scales, or the average of the round before, are missing")
        self.steps.take(message, "round")
        p = self.params
        gradient = compute_gradient(self.design, self.target, self.weights, p.bits, self.logistic)
        places = 2 * p.bits + SIGMOID_BITS
        local_weights = take_step(self.weights, gradient, places, len(self.design), p.lr, p.alpha)
        # Larger weights could overflow the int64 sum over all clients.
        if any(abs(w) >= 1 << (p.bits + 10) for w in local_weights):
            raise ProtocolError(
                f"the weights of {self.name!r} have grown beyond 1024: take a smaller lr"
            )
        return LocalWeights(message.round, local_weights.astype(np.int64))

    @handles(
        AverageWeights,
        round="the round that was answered last, once",
        weights="any of the agreed number",
        bits="0 to the agreed number of binary places",
    )
    def follow(self, message: AverageWeights) -> None:
        """Replace the local weights by the average."""
        check_equal(message, "round", self.steps.last, "the round that was answered last")
        if message.weights.shape != self.weights.shape:
            refuse(message, "weights", f"the model has {len(self.weights)} weights")
        if not 0 <= message.bits <= self.params.bits:
            refuse(message, "bits", f"binary places are 0 to {self.params.bits}")
        self.averages.take(message, "round")
        # A defense may send the average with fewer binary places than agreed.
        self.weights = drop_places(
            to_python_integers(message.weights), message.bits - self.params.bits
        )


class AveragingServer(Coordinator):
    """The server, which receives only sums."""

    def __init__(self, seat: Seat, protocol: HorizontalRegression) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema

    def train(self, net: Network) -> RegressionWeights:
        """Agree on the standardisation, then average weights in every round."""
        p, d = self.params, len(self.schema.features)
        # All clients use the same scales, so that their weights can be averaged.
        scales = self._scales(net, d + 1)
        net.send(
            "client", scales, reason="the scales by which all clients standardise their columns"
        )
        sent: AverageWeights | None = None
        for round in range(p.rounds):
            reason = "weights after a step on your rows; I learn their sum"
            total = net.request_sum("client", WeightsRequest(round), reason=reason)
            count = len(net.members("client"))
            # Division with rounding to the nearest integer, halves up.
            mean = to_python_integers(
                [(2 * w + count) // (2 * count) for w in total.weights.tolist()]
            )
            message = AverageWeights(round, mean.astype(np.int64), p.bits)
            sent = net.send("client", message, reason="the average, to go on from")
        assert sent is not None  # there is at least one round
        weights = from_fixed_point(to_python_integers(sent.weights), sent.bits)
        padded_weights = np.zeros(d + 1)
        padded_weights[: len(weights)] = weights
        classes, kind = bool(self.schema.classes), p.kind_for(self.schema)
        return RegressionWeights(kind, classes, scales.mean, scales.scale, padded_weights)

    def _scales(self, net: Network, width: int) -> CommonScales:
        """Return the moments of all rows: first the mean, then the deviation from it."""
        reason = "sums over your rows, of which I learn the total, to standardise columns"
        moments = net.request_sum("client", MomentsRequest(np.zeros(width)), reason=reason)
        count = np.maximum(moments.count, 1)
        around = moments.total / count
        moments = net.request_sum("client", MomentsRequest(around), reason=reason)
        scale = np.sqrt(moments.squares / count)
        # The deviation of a constant column is not exactly 0, because sums are rounded.
        scale[scale <= 1e-9 * np.abs(around)] = 0.0
        mean = around
        if self.schema.classes:
            mean, scale = np.append(mean[:-1], 0.0), np.append(scale[:-1], 1.0)
        if not scale[-1] > 0:
            raise DataError("all targets are the same; a regression takes two values")
        return CommonScales(mean, scale)
