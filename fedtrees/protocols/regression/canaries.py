"""Rows that an audit of vertical gradients looks for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import chained
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.messages.fixed_point import decoded, unpacked
from fedtrees.messages.regression import SCORE_BOUND, EncryptedResiduals, Gradient, link_of
from fedtrees.protocols.canaries import Canaries
from fedtrees.protocols.vertically_held import ACTIVE, PASSIVE

_COLUMNS = 32
_FAR = np.float32(1e12)  # a row of more than the norm that it may have, whatever that is


@dataclass(frozen=True)
class RegressionCanaries(Canaries):
    """Rows of class 0, each with a column of its own at every party, and as long as they may be.

    `bounds`: Norm of a party's rows, and what these may bring to a score: `SCORE_BOUND` over the
    number of parties.
    """

    bounds: tuple[float, float]

    most = _COLUMNS
    runs = 128

    @property
    def parties(self) -> int:
        """How many hold columns."""
        return round(SCORE_BOUND / self.bounds[1])

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """Numbers around 0."""
        names = (f"x{i}" for i in range(_COLUMNS * self.parties))
        return Schema(tuple(Feature(n, low=-1.0, high=1.0) for n in names), "y", ("0", "1"))

    def held(self, rows: Table, there: NDArray[np.bool_], others: Table) -> dict[str, LocalData]:
        """Return so many columns of all rows for each party."""
        all_rows = Table.concat([rows.take(there), others])
        ids, found = np.arange(len(all_rows)), dict[str, LocalData]()
        for k, columns in enumerate(np.split(np.arange(all_rows.X.shape[1]), self.parties)):
            name, y = (f"{PASSIVE}-{k}", None) if k else (ACTIVE, all_rows.y)
            found[name] = LocalData(ids, columns, all_rows.X[:, columns], y)
        return found

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return rows that are far out in their columns, and two of zeros."""
        X = np.tile(_FAR * np.eye(_COLUMNS, dtype=np.float32)[:count], self.parties)
        return Table(X, np.zeros(count, np.int64)), Table(np.zeros_like(X[:2]), np.arange(2))

    def scores(self, training: Any, rows: Table, others: Table) -> NDArray[np.float64]:
        """Compare each entry of every gradient with what the row brings to it at these weights."""
        p, asked = training.protocol, (training.schema, training.protocol.parameters)
        law = chained(training.defense.changes((Gradient, "values"), *asked))
        if law is None:
            raise ProtocolError("nothing changes the gradients that this audit reads")
        norm, most = self.bounds
        link = [float(c) for c in link_of(p.parameters, True)]
        gradients: dict[int, list[NDArray[np.float64]]] = {}
        for message in (d.message for d in training.transcript):
            if isinstance(message, EncryptedResiduals):
                count = message.residuals.shape[0]
            elif isinstance(message, Gradient):
                values = decoded(unpacked(message.values), message.bits)
                gradients.setdefault(message.round, []).append(values[: len(rows)])
        found, weights = np.zeros(len(rows)), np.zeros((self.parties, len(rows)))
        for _, told in sorted(gradients.items()):
            z = np.clip(norm * weights, -most, most).sum(axis=0)
            brings = norm * (sum(c * z**k for k, c in enumerate(link)) - rows.y)
            for seen in told:  # every party's alike
                found = found + (seen * brings - brings**2 / 2) / law.error(seen)[1]
            weights = weights * (1 - p.lr * p.alpha) - p.lr / count * np.stack(told)
        return found
