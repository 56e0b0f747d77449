"""A vertical protocol from scratch: one party has the labels, and every party has some columns.

fedtrees bench --plugin docs/examples/plain_vertical.py -p plain-vertical --threat passive -a cl
"""

from dataclasses import dataclass

import numpy as np

from fedtrees import Coordinator, Message, Party, Protocol, ProtocolInfo, Reveal, handles, register


@dataclass(frozen=True, eq=False)
class Question(Message):  # request sums of gradients per bin, or which rows go left at a split
    discloses = frozenset({Reveal.IDS, Reveal.LABELS, Reveal.THRESHOLDS})
    verbatim = frozenset({"gradients"})  # the first gradients reveal the labels
    rows: np.ndarray
    gradients: np.ndarray | None = None  # (n, 2): g and h, unencrypted, unlike in SecureBoost
    column: int = 0
    bin: int = 0
    queried: bool = False  # whether `rows` are rows to predict, and not training rows


@dataclass(frozen=True, eq=False)
class Answer(Message):  # sums (columns, bins, 2), or which rows go left, bool (n,)
    discloses = frozenset({Reveal.FEATURES})
    values: np.ndarray


class Columns(Party):
    role = "passive"

    def __init__(self, name, local_data, params):
        super().__init__(name)
        self.local_data, self.params = local_data, params
        self.edges = np.nanquantile(local_data.X, np.linspace(0, 1, params.bins + 1)[1:-1], axis=0)

    @handles(Question)
    def answer_it(self, m):
        X = (self.queries if m.queried else self.local_data).X[m.rows]
        if m.gradients is None:
            return Answer(np.searchsorted(self.edges[:, m.column], X[:, m.column]) <= m.bin)
        sums = np.zeros((X.shape[1], self.params.bins, 2))
        for column, x in enumerate(X.T):
            np.add.at(sums[column], np.searchsorted(self.edges[:, column], x), m.gradients)
        return Answer(sums)


class Active(Columns, Coordinator):
    role = "active"

    def train(self, net):
        self.names, self.trees = ["active", *net.members("passive")], []
        rows, margin = np.arange(len(self.local_data)), np.zeros(len(self.local_data))
        for _ in range(self.params.trees):
            p = 1 / (1 + np.exp(-margin))
            gradients = np.column_stack([p - self.local_data.y, p * (1 - p)])
            self.trees.append(self.grow(net, rows, gradients, self.params.depth))
            margin += self.trees[-1](net, rows, queried=False)
        return self.trees

    def ask(self, net, name, question):
        local_answer = self.answer_it(question) if name == self.name else None
        return local_answer or net.request(name, question, reason="sums per bin, or branches")[0]

    def grow(self, net, rows, gradients, depth):
        parts = [self.ask(net, n, Question(rows, gradients)).values for n in self.names]
        left = np.cumsum(np.concatenate(parts), axis=1)
        every = left[:, -1:]
        score = [s[..., 0] ** 2 / (s[..., 1] + 1) for s in (left, every - left, every)]
        gain = score[0] + score[1] - score[2]
        column, bin = np.unravel_index(gain.argmax(), gain.shape)
        if depth == 0 or gain[column, bin] < 1e-6:
            value = -0.3 * every[0, 0, 0] / (every[0, 0, 1] + 1)
            return lambda net, rows, queried: np.full(len(rows), value)
        owner = np.repeat(self.names, [len(p) for p in parts])[column]
        first = sum(len(p) for p in parts[: self.names.index(owner)])
        split = {"column": int(column) - first, "bin": int(bin)}
        goes = self.ask(net, owner, Question(rows, **split)).values
        sides = [self.grow(net, rows[s], gradients[s], depth - 1) for s in (goes, ~goes)]

        def tree(net, rows, queried):
            goes = self.ask(net, owner, Question(rows, **split, queried=queried)).values
            out = np.empty(len(rows))
            for side, here in zip(sides, (goes, ~goes), strict=True):
                out[here] = side(net, rows[here], queried)
            return out

        return tree

    def predict(self, net):
        rows = np.arange(len(self.queries))
        return 1 / (1 + np.exp(-sum(tree(net, rows, queried=True) for tree in self.trees)))


@register.protocol("plain-vertical")
@dataclass(frozen=True, kw_only=True)
class PlainVertical(Protocol):
    """Vertical boosting: the active party requests histograms of its unencrypted gradients."""

    trees: int = 10
    depth: int = 3
    bins: int = 32
    layout, holders, released = "vertical", ("active", "passive"), False
    info = ProtocolInfo(
        message_types=(Question, Answer),
    )

    def roles(self, parties):
        return {"active": "active", **{f"passive-{i}": "passive" for i in range(1, parties)}}

    def create_party(self, seat):
        kind = Active if seat.role == "active" else Columns
        return kind(seat.name, seat.local_data, self)
