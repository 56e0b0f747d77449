"""A protocol over columns: one party has the labels, the others tell where their columns point.

The active party tells everybody the labels less their mean; every party weighs its columns by
them. Nobody holds the model whole: rows are scored by messages, on record.
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
    """Ask for one's part of the scores of the rows in question."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset()


@dataclass(frozen=True, eq=False)
class PluginScores(Message):
    """One party's part of the scores."""

    discloses: ClassVar[frozenset[Reveal]] = frozenset({Reveal.FEATURES})
    values: NDArray[np.float64]


class Side:
    """What both sides do with their columns."""

    def weigh(self, message):
        X = np.nan_to_num((self.held.X - self.held.X.mean(axis=0)) / (self.held.X.std(axis=0) + 1))
        self.weights = X.T @ message.values / len(X)

    def part(self):
        return np.nan_to_num(self.asked.X - self.held.X.mean(axis=0)) @ (
            self.weights / (self.held.X.std(axis=0) + 1)
        )


class Passive(Side, Party):
    role = "passive"

    def __init__(self, name, held):
        super().__init__(name)
        self.held = held

    @handles(PluginResiduals)
    def learn(self, message):
        self.weigh(message)

    @handles(PluginScoresRequest)
    def score(self, message):
        return PluginScores(self.part())


class Active(Side, Coordinator):
    role = "active"

    def __init__(self, name, held):
        super().__init__(name)
        self.held = held

    def train(self, net):
        residuals = PluginResiduals(self.held.ids, self.held.y - self.held.y.mean())
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
        for name, asked in queries.items():
            party = net.party(name)
            with acting(party):
                party.asked = asked
        active = net.party("active")
        with acting(active):
            parts = net.request("passive", PluginScoresRequest(), reason="parts of the scores")
            return 1 / (1 + np.exp(-8 * (active.part() + sum(p.values for p in parts))))
