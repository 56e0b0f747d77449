"""A minimal protocol: boosted stumps that split each column at its mean over all clients.

fedtrees plugin check docs/examples/minimal_protocol.py
fedtrees model train -p minimal-stumps --plugin docs/examples/minimal_protocol.py --data wine
"""

from dataclasses import dataclass, replace

import numpy as np

from fedtrees import Coordinator, Message, Party, Protocol, ProtocolInfo, Reveal, handles, register
from fedtrees.core.messages import summable
from fedtrees.protocols.base import ENCODED_FILE


@dataclass(frozen=True, eq=False)
class Stumps(Message):  # the model so far. The server sends it to request the next sums.
    discloses = frozenset({Reveal.THRESHOLDS, Reveal.LABELS})
    means: np.ndarray  # (d,), or empty to request the sums of the columns
    columns: np.ndarray  # (trees so far,)
    values: np.ndarray  # (trees so far, 2): log-odds below and above the mean

    def predict(self, X):
        above = (X[:, self.columns] > self.means[self.columns]).astype(int)
        margin = self.values[np.arange(len(self.columns)), above].sum(axis=1)
        return 1 / (1 + np.exp(-margin))

    def __len__(self):
        return len(self.columns)

    def as_message(self):  # the model is released as this message
        return self


@dataclass(frozen=True, eq=False)
class Sums(Message):
    discloses = frozenset({Reveal.FEATURES, Reveal.LABELS, Reveal.COUNTS})
    sums: np.ndarray = summable()


class Client(Party):
    role = "client"

    def __init__(self, name, local_data):
        super().__init__(name)
        self.X, self.y = local_data.X.astype(float), local_data.y

    @handles(Stumps)
    def compute_sums(self, model):
        if not len(model.means):
            return Sums(np.stack([np.nansum(self.X, axis=0), (~np.isnan(self.X)).sum(axis=0)]))
        p = model.predict(self.X)
        gradients = np.stack([p - self.y, p * (1 - p)])
        above = model.means < self.X
        return Sums(np.stack([gradients @ ~above, gradients @ above], axis=-1))  # (2, d, 2)


class Server(Coordinator):
    def __init__(self, params):
        super().__init__("server")
        self.params = params

    def train(self, net):
        model = Stumps(np.zeros(0), np.zeros(0, int), np.zeros((0, 2)))
        total, rows = self.add_replies(net, model)
        model = replace(model, means=total / np.maximum(rows, 1))
        for _ in range(self.params.trees):
            g, h = self.add_replies(net, model)
            column = (g**2 / (h + 1)).sum(axis=1).argmax()
            value = -self.params.learning_rate * g[column] / (h[column] + 1)
            columns = np.append(model.columns, column)
            model = replace(model, columns=columns, values=np.vstack([model.values, value]))
        return model

    def add_replies(self, net, model):
        replies = net.request("client", model, reason="sums over the rows, to grow the next stump")
        return sum(reply.sums for reply in replies)


@register.protocol("minimal-stumps")
@dataclass(frozen=True, kw_only=True)
class MinimalStumps(Protocol):
    """Boost stumps on sums of gradients."""

    trees: int = 20
    learning_rate: float = 0.3
    info = ProtocolInfo(message_types=(Stumps, Sums), model_file=ENCODED_FILE)

    def create_party(self, seat):
        return Server(self) if seat.role == "server" else Client(seat.name, seat.local_data)
