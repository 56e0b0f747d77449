"""Canaries for an audit of the decrypted gradients of vertical regression."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import chained
from fedtrees.core.composition import Composition
from fedtrees.core.errors import ProtocolError
from fedtrees.core.local_data import LocalData
from fedtrees.core.schema import Feature, Schema, Table
from fedtrees.linear import SCORE_BOUND, from_fixed_point, link_polynomial, unpack_integers
from fedtrees.messages.regression import EncryptedResiduals, Gradient
from fedtrees.privacy_audit.canaries import Canaries, register_audit_setting
from fedtrees.protocols.regression.vertical import VerticalRegression
from fedtrees.protocols.settings import ACTIVE, PASSIVE
from fedtrees.protocols.training import Training

_COLUMNS = 32
_FAR = np.float32(1e12)  # a value that exceeds every bound on the norm of a row


@dataclass(frozen=True)
class RegressionCanaries(Canaries):
    """Rows of class 0 with the largest permitted norm, each in separate columns at every party.

    Parameters
    ----------
    bounds : (float, float)
        Bound on the norm of a party's rows, and on their contribution to a score: `SCORE_BOUND`
        divided by the number of parties.
    """

    bounds: tuple[float, float]

    max_canaries = _COLUMNS
    runs = 128

    @property
    def parties(self) -> int:
        """Number of parties with columns."""
        return round(SCORE_BOUND / self.bounds[1])

    @property
    def schema(self) -> Schema:  # type: ignore[override]
        """Numeric columns with range -1 to 1."""
        names = (f"x{i}" for i in range(_COLUMNS * self.parties))
        return Schema(tuple(Feature(n, low=-1.0, high=1.0) for n in names), "y", ("0", "1"))

    def distribute(
        self, rows: Table, is_included: NDArray[np.bool_], companions: Table
    ) -> dict[str, LocalData]:
        """Return the same number of columns of all rows for each party."""
        all_rows = Table.concat([rows.take(is_included), companions])
        ids, local_data = np.arange(len(all_rows)), dict[str, LocalData]()
        for k, columns in enumerate(np.split(np.arange(all_rows.X.shape[1]), self.parties)):
            name, y = (f"{PASSIVE}-{k}", None) if k else (ACTIVE, all_rows.y)
            local_data[name] = LocalData(ids, columns, all_rows.X[:, columns], y)
        return local_data

    def rows(self, count: int, rng: np.random.Generator) -> tuple[Table, Table]:
        """Return canaries with a single large value per party, and two rows of zeros."""
        # Rows are scaled down to the bound, so that each canary contributes to one weight per
        # party.
        X = np.tile(_FAR * np.eye(_COLUMNS, dtype=np.float32)[:count], self.parties)
        return Table(X, np.zeros(count, np.int64)), Table(np.zeros_like(X[:2]), np.arange(2))

    def scores(self, training: Training, rows: Table, companions: Table) -> NDArray[np.float64]:
        """Compare each entry of every gradient with the contribution of a canary to it.

        The contribution depends on the weights, which follow from the earlier gradients.
        """
        p = training.protocol
        assert isinstance(p, VerticalRegression)
        law = chained(training.defense.changes((Gradient, "values"), training.schema, p.parameters))
        if law is None:
            raise ProtocolError("nothing changes the gradients that this audit reads")
        norm, max_score = self.bounds
        link = [float(c) for c in link_polynomial(p.parameters, True)]
        gradients: dict[int, list[NDArray[np.float64]]] = {}
        for message in (d.message for d in training.transcript):
            if isinstance(message, EncryptedResiduals):
                count = message.residuals.shape[0]
            elif isinstance(message, Gradient):
                values = from_fixed_point(unpack_integers(message.values), message.bits)
                gradients.setdefault(message.round, []).append(values[: len(rows)])
        scores, weights = np.zeros(len(rows)), np.zeros((self.parties, len(rows)))
        for _, round_gradients in sorted(gradients.items()):
            z = np.clip(norm * weights, -max_score, max_score).sum(axis=0)
            contribution = norm * (sum(c * z**k for k, c in enumerate(link)) - rows.y)
            for gradient in round_gradients:  # one per party
                scores = (
                    scores
                    + (gradient * contribution - contribution**2 / 2)
                    / law.posterior_moments(gradient)[1]
                )
            # Repeat the training step with the released gradients to get the weights of the next
            # round.
            weights = weights * (1 - p.lr * p.alpha) - p.lr / count * np.stack(round_gradients)
        return scores


@register_audit_setting(VerticalRegression)
def choose_regression_setting(
    protocol: VerticalRegression, defense: Composition
) -> tuple[VerticalRegression, RegressionCanaries] | None:
    """Move weights beyond their bounds, where the residuals are largest.

    None unless a defense bounds rows.
    """
    bounds = defense.requirements.row_bounds
    far = replace(
        protocol, kind="logistic", degree=1, lr=1e3, alpha=0.0, rounds=8, batch=0, fake=0,
        intercept=False, statistics="public", bits=24,
    )  # fmt: skip
    return None if bounds is None else (far, RegressionCanaries(bounds))
