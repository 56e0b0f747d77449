"""A vertical protocol in which the party with labels broadcasts their residuals.

The active party sends every party the labels minus their mean, and each party weighs its columns by
them. No party has the complete model: rows are scored by messages in the transcript.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import UsageError
from fedtrees.core.messages import Message, Reveal
from fedtrees.core.party import Party, acting, handles
from fedtrees.core.registry import register
from fedtrees.protocols.base import Coordinator, Protocol, ProtocolInfo


@dataclass(frozen=True, eq=False)
class PluginResiduals(Message):
    """Labels less their mean."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.LABELS, Reveal.IDS})
    verbatim: ClassVar[frozenset[str]] = frozenset({"values"})
    ids: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PluginScoresRequest(Message):
    """Request a party's part of the scores of the queried rows."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class PluginScores(Message):
    """One party's part of the scores."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    values: NDArray[np.float64]


class Side:
    """The computations of both sides on their columns."""

    def weigh(self, message):
        X = np.nan_to_num(
            (self.local_data.X - self.local_data.X.mean(axis=0))
            / (self.local_data.X.std(axis=0) + 1)
        )
        self.weights = X.T @ message.values / len(X)

    def part(self):
        return np.nan_to_num(self.queries.X - self.local_data.X.mean(axis=0)) @ (
            self.weights / (self.local_data.X.std(axis=0) + 1)
        )


class Passive(Side, Party):
    role = "passive"

    def __init__(self, name, local_data):
        super().__init__(name)
        self.local_data = local_data

    @handles(PluginResiduals)
    def learn(self, message):
        self.weigh(message)

    @handles(PluginScoresRequest)
    def score(self, message):
        return PluginScores(self.part())


class Active(Side, Coordinator):
    role = "active"

    def __init__(self, name, local_data):
        super().__init__(name)
        self.local_data = local_data

    def train(self, net):
        residuals = PluginResiduals(
            self.local_data.ids, self.local_data.y - self.local_data.y.mean()
        )
        self.weigh(net.send("passive", residuals, reason="every side weighs its columns by them"))
        return "in parts"


@register.protocol("plugin-two-sides")
@dataclass(frozen=True, kw_only=True)
class TwoSides(Protocol):
    """Columns weighed by their correlation with the label."""

    layout: ClassVar[str] = "vertical"
    holders: ClassVar[tuple[str, ...]] = ("active", "passive")
    info = ProtocolInfo(
        message_types=(PluginResiduals,),
    )
    released: ClassVar[bool] = False

    def roles(self, parties):
        if parties < 2:
            raise UsageError(f"{self.name}: {parties} party has nobody to ask; give 2 or more")
        return {"active": "active", **{f"passive-{i}": "passive" for i in range(parties - 1)}}

    def create_party(self, seat):
        return (Active if seat.role == "active" else Passive)(seat.name, seat.local_data)

    def predict(self, net, model, queries):
        for name, party_queries in queries.items():
            party = net.party(name)
            with acting(party):
                party.queries = party_queries
        active = net.party("active")
        with acting(active):
            parts = net.request("passive", PluginScoresRequest(), reason="parts of the scores")
            return 1 / (1 + np.exp(-8 * (active.part() + sum(part.values for part in parts))))
