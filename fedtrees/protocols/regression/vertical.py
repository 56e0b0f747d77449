"""Protocol `vertical-regression`: vertical gradient descent with encrypted gradients.

An arbiter has the private key and decrypts the gradient of each party for that party (Yang et al.
2019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, UsageError
from fedtrees.core.local_data import LocalData, LocalDataSummary
from fedtrees.core.messages import EncryptedComputation, Sealed
from fedtrees.core.network import Network
from fedtrees.core.parameters import checked, one_of, positive, whole
from fedtrees.core.party import Party, handles
from fedtrees.core.registry import register
from fedtrees.core.requests import Once, Turns, check_among, check_equal, refuse
from fedtrees.core.schema import Schema
from fedtrees.core.view import Seen
from fedtrees.crypto.costs import DEFAULT_BITS, check_key_bits, public_key_bytes
from fedtrees.crypto.modes import MODES, create_encrypted_computation
from fedtrees.crypto.vectors import (
    IdealVectors,
    VectorCombiner,
    VectorDecrypter,
    VectorEvaluator,
    VectorKeyOwner,
)
from fedtrees.linear import (
    SIGMOID_BITS,
    SIGMOIDS,
    Integers,
    clip_scores,
    column_moments,
    from_fixed_point,
    link_polynomial,
    pack_integers,
    predict_from_scores,
    shorten_rows,
    split_batches,
    standardise_rows,
    take_step,
    to_fixed_point,
    to_python_integers,
    unpack_integers,
)
from fedtrees.messages.aggregation import PaillierKey
from fedtrees.messages.regression import (
    ColumnScales,
    EncryptedGradient,
    EncryptedResiduals,
    EncryptedScores,
    Gradient,
    HeldWeights,
    KeyRequest,
    OpenedVector,
    OwnDesign,
    RowsToScore,
    ScoresOfRows,
    ScoresRequest,
)
from fedtrees.protocols.base import Coordinator, Seat
from fedtrees.protocols.regression.settings import RegressionParams, check_weightless
from fedtrees.protocols.settings import ACTIVE, PASSIVE, VerticallyPartitioned

ARBITER = "arbiter"
# Numbers in `OwnDesign.columns` that are no columns of the schema.
RANDOMNESS = -2
INTERCEPT = -1


@register.protocol("vertical-regression")
@dataclass(frozen=True, kw_only=True)
class VerticalRegression(RegressionParams, VerticallyPartitioned):
    """Vertical linear or logistic regression with an arbiter (Yang et al. 2019; FATE).

    In every round the passive parties send the encrypted contributions of their columns to the
    scores. The active party adds its contribution and subtracts the labels. Each party multiplies
    the encrypted residuals by its columns, and the arbiter decrypts the product, which is the
    gradient of that party. Each party standardises its columns and announces mean and deviation.
    Logistic regression replaces the sigmoid by a polynomial.

    Parameters
    ----------
    batch : int
        Largest number of rows of a step. The same batches follow in the same order again and again
        (the default of FATE). 0 for all rows.
    degree : {1, 3}
        Degree of the polynomial. 3 requires a single passive party.
    fake : int
        Number of random columns that the active party adds to its columns (Li et al. 2022, Sec.
        4.1).
    fake_scale : float
        Standard deviation of the random columns.
    statistics : {"own", "public"}
        Standardise columns by mean and deviation of their values, or by declared ranges.
    arbiter : {"ideal", "real", "phe"}
        ``real`` uses Paillier encryption. Models, views and byte counts are the same, to the last
        bit. ``phe``: the same encryption computed by python-paillier, which is slower.
    key_bits : {1024, 2048, 3072}
        Length of the key. 1024 is weak and only for comparison.
    """

    bits: int = whole(8, 1024, default=53)  # the precision of a float64
    batch: int = whole(0, default=0)
    degree: int = 1
    fake: int = whole(0, default=0)
    fake_scale: float = positive(0.01)
    statistics: str = one_of(("own", "public"), default="own")
    arbiter: str = one_of(MODES, default="ideal")
    key_bits: int = checked(check_key_bits, DEFAULT_BITS)

    released: ClassVar[bool] = False
    info = replace(
        VerticallyPartitioned.info,
        adversaries=(ACTIVE,),
        # at most as many rows as columns of a party
        example_dataset="breast-cancer[rows=20]",
        role_labels={
            **VerticallyPartitioned.info.role_labels,
            ARBITER: ("the arbiter", "arbiters"),
        },
        message_types=(
            KeyRequest, PaillierKey, ColumnScales, ScoresRequest, EncryptedScores,
            EncryptedResiduals, EncryptedGradient, Gradient, OwnDesign,
        ),
        capabilities=frozenset({"row_bounds"}),
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.degree not in SIGMOIDS:
            raise UsageError(
                f"degree={self.degree!r}: the sigmoid is a polynomial of degree 1 or 3"
            )

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the roles: arbiter, active party (with the labels), and passive parties."""
        return {**super().roles(parties), ARBITER: ARBITER}

    def encrypted_computation(self) -> EncryptedComputation:
        """Return the functions that encrypt, compute and decrypt in one run."""
        sides = IdealVectors, VectorKeyOwner, VectorEvaluator
        return create_encrypted_computation(self.arbiter, *sides, self.key_bits, ARBITER)

    def jointly_opened(self, seen: Sequence[Seen], encryption: Mapping[str, Any]) -> list[Seen]:
        """Return the residuals and scores that a colluding arbiter can decrypt."""
        residuals = [s.message for s in seen if isinstance(s.message, EncryptedResiduals)]
        # Only a coalition with the arbiter has the private key.
        if ARBITER not in encryption or not residuals:
            return []
        key, m, opened_messages = encryption[ARBITER], residuals[0].residuals.shape[0], list[Seen]()
        for item in seen:
            message = item.message
            if isinstance(message, EncryptedResiduals):
                party, name, sealed = "", f"{message.round}/d", message.residuals
            elif isinstance(message, EncryptedScores):
                # The payload contains z, followed by its powers. Only z is of interest.
                party, sealed = message.party, message.scores
                name = f"{party}/{message.round}/z1"
            else:
                continue
            values = key.decrypt(name, sealed.payload[: key.nbytes(m)], m)
            opened = OpenedVector(party, message.round, pack_integers(values))
            opened_messages.append(
                Seen(item.round, ARBITER, (ARBITER,), opened, "opened for a colluder")
            )
        return opened_messages

    def check(self, schema: Schema) -> None:
        """Refuse more than two classes."""
        self.kind_for(schema)

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:
        """Refuse weights, fewer labels than a batch, and labels that are all equal."""
        self.check(schema)
        if local_data.weight is not None:
            check_weightless(name, local_data)
        if local_data.y is None:
            return
        if self.batch > len(local_data):
            raise UsageError(
                f"batch={self.batch}: there are {len(local_data)} rows; take fewer, or 0 for all"
            )
        super().check_local_data(name, local_data, schema)
        if not schema.classes and (local_data.y == local_data.y[0]).all():
            raise DataError("all targets are the same; a regression takes two values")

    def check_joint_data(
        self, declarations: Mapping[str, LocalDataSummary], schema: Schema
    ) -> None:
        """Refuse labels at a passive party, and a cubic polynomial with several passive parties."""
        super().check_joint_data(declarations, schema)
        if self.degree == 3 and self.kind_for(schema) == "logistic" and len(declarations) > 2:
            raise UsageError(
                f"degree=3: {len(declarations) - 1} passive parties would multiply ciphertexts; "
                "take degree=1, or one passive party"
            )

    def create_party(self, seat: Seat) -> Party:
        """Create the arbiter, the active party or a passive party."""
        kinds = {ARBITER: Arbiter, ACTIVE: ActiveRegression, PASSIVE: PassiveRegression}
        return kinds[seat.role](seat, self)

    def residual_bits(self, schema: Schema) -> int:
        """Return the binary places of residuals."""
        return (
            2 * self.bits * (len(link_polynomial(vars(self), bool(schema.classes))) - 1)
            + SIGMOID_BITS
        )


def declared_moments(
    local_data: LocalData, schema: Schema
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and deviation of columns, assuming that they are uniform on the declared range.

    Raises
    ------
    DataError
        If a column declares no range.
    """
    ends = [schema.features[c].declared_range for c in local_data.columns]
    for column, both in zip(local_data.columns, ends, strict=True):
        if both is None:
            raise DataError(
                f"statistics=public: column {schema.names[column]!r} declares no range; declare "
                "one in the schema, or leave out statistics"
            )
    low, high = np.array(ends, dtype=np.float64).reshape(-1, 2).T
    return (low + high) / 2, (high - low) / np.sqrt(12)


class Arbiter(Party):
    """The party with the private key. It decrypts each party's gradient for that party.

    It decrypts one gradient per party and round. If it adds noise, the units of a gradient
    determine the relative size of the noise. Units therefore follow from the public parameters.
    """

    role = ARBITER
    encryption: VectorDecrypter

    def __init__(self, seat: Seat, protocol: VerticalRegression) -> None:
        super().__init__(seat.name)
        self.params, self.schema = protocol, seat.schema
        self.opened: dict[str, Turns] = {}  # answered rounds, by the owner of the gradients

    @handles(KeyRequest)
    def tell_key(self, message: KeyRequest) -> PaillierKey:
        """Answer with the public key."""
        bits = self.params.key_bits
        size = public_key_bytes(bits, djn=True)
        key = Sealed((), (size,), "|u1", size, self.encryption.public_key())
        return PaillierKey(self.name, bits, key)

    @handles(
        EncryptedGradient,
        party="an active or passive party of the agreement",
        round="of each party in order, each once, at most the agreed rounds",
        gradient="as many numbers as a party can have columns, intercept and fake columns included",
        bits="as computed from the agreed `bits` and link",
    )
    def open(self, message: EncryptedGradient) -> Gradient:
        """Decrypt a gradient for its owner, once in every round."""
        p = self.params
        holders = [*self.agreement.members(ACTIVE), *self.agreement.members(PASSIVE)]
        check_among(message, "party", holders, "the owner of a gradient")
        bits = p.residual_bits(self.schema) + p.bits
        check_equal(message, "bits", bits, "the number of binary places")
        max_weights = len(self.schema.features) + p.fake + int(p.intercept)
        if not 0 <= message.gradient.shape[0] <= max_weights:
            refuse(message, "gradient", f"a party has at most {max_weights} weights")
        self.opened.setdefault(message.party, Turns(p.rounds)).take(message, "round")
        sealed, name = message.gradient, f"{message.party}/{message.round}/g"
        gradient = self.encryption.decrypt(name, sealed.payload, sealed.shape[0])
        return Gradient(message.party, message.round, pack_integers(gradient), message.bits)


class Holder(Party):
    """Common computations of active and passive parties: standardisation, scores, and steps."""

    encryption: VectorCombiner

    def __init__(self, seat: Seat, protocol: VerticalRegression) -> None:
        super().__init__(seat.name)
        self.params, self.schema, self.local_data = protocol, seat.schema, seat.rows
        self.bounds, X = seat.defense.requirements.row_bounds, seat.rows.X
        if np.isinf(X).any():
            raise DataError("a column has an infinite value; leave it missing")
        public = protocol.statistics == "public"
        self.mean, self.scale = (
            declared_moments(seat.rows, seat.schema) if public else column_moments(X)
        )
        design = standardise_rows(X, self.mean, self.scale, protocol.bits)
        self.design = shorten_rows(design, protocol.bits, self.bounds)
        self.weights = to_python_integers(np.zeros(self.design.shape[1], dtype=np.int64))
        self.link = link_polynomial(vars(protocol), bool(seat.schema.classes))
        self.batches = split_batches(len(X), protocol.batch)

    def _batch(self, round: int) -> slice:
        """Return the rows of a round."""
        return self.batches[round % len(self.batches)]

    def _own_scores(self, round: int) -> Integers:
        """Return the contribution of the party's columns to the scores of a round's rows."""
        z: Integers = self.design[self._batch(round)] @ self.weights
        return clip_scores(z, 2 * self.params.bits, self.bounds)

    def _seal(self, payload: bytes, count: int, kind: str) -> Sealed:
        """Return a ciphertext as a message field, and record its size."""
        nbytes = self.encryption.nbytes(count)
        self.encryption.ledger.sent(kind, count, nbytes)
        return Sealed((ARBITER,), (count,), f"|V{self.encryption.nbytes(1)}", nbytes, payload)

    def _descend(self, message: EncryptedResiduals) -> None:
        """Multiply the residuals by the columns, have the product decrypted, and take a step."""
        p, X = self.params, self.design[self._batch(message.round)]
        m = len(X)
        bits = p.residual_bits(self.schema) + p.bits
        zero = to_python_integers(np.zeros(self.design.shape[1], dtype=np.int64))
        parts = {f"{message.round}/d": (message.residuals.payload, X.T)}
        # The product of ciphertexts and integers is a linear combination, which Paillier supports.
        payload = self.encryption.combine(f"{self.name}/{message.round}/g", parts, zero, opens=True)
        sealed = self._seal(payload, len(zero), "EncryptedGradient")
        request = EncryptedGradient(self.name, message.round, sealed, bits)
        (reply,) = self.net.request(ARBITER, request, reason="my gradient, for the arbiter to open")
        gradient = unpack_integers(reply.values)
        self.weights = take_step(self.weights, gradient, reply.bits - p.bits, m, p.lr, p.alpha)

    def _scored(self, queries: LocalData) -> NDArray[np.float64]:
        """Return the contribution of the columns to the scores of test rows, float64, (n,)."""
        bits = self.params.bits
        Z = standardise_rows(queries.X, self.mean, self.scale, bits)
        return from_fixed_point(Z @ self.weights[: Z.shape[1]], 2 * bits)


class PassiveRegression(Holder):
    """A party with columns and without labels."""

    role = PASSIVE

    def __init__(self, seat: Seat, protocol: VerticalRegression) -> None:
        super().__init__(seat, protocol)
        rounds = protocol.rounds
        self.keyed, self.scored, self.stepped = Once(), Turns(rounds), Turns(rounds)

    @handles(
        PaillierKey,
        holder="the arbiter",
        bits="the agreed `key_bits`",
        key="taken once",
    )
    def begin(self, message: PaillierKey) -> ColumnScales:
        """Store the key, and answer with the standardisation of the columns, once."""
        check_among(message, "holder", self.agreement.members(ARBITER), "the holder of the key")
        check_equal(message, "bits", self.params.key_bits, "the length of the key")
        self.keyed.take(message)
        self.encryption.learn(message.key.payload, message.bits)
        columns = self.local_data.columns.astype(np.int32)
        public = self.params.statistics == "public"
        return ColumnScales(self.name, columns, self.mean, self.scale, public)

    @handles(ScoresRequest, round="in order, each once, after the step of the round before")
    def score(self, message: ScoresRequest) -> EncryptedScores:
        """Answer with encrypted scores and their powers."""
        if not self.keyed.answered or self.stepped.last != self.scored.last:
            refuse(message, "round", "the key, or the residuals of the round before, are missing")
        self.scored.take(message, "round")
        # Scores are clipped before encryption, if a defense bounds rows.
        z = self._own_scores(message.round)
        degree = len(self.link) - 1
        # The residual polynomial of degree d needs the powers 1 to d of the passive scores.
        names = [f"{self.name}/{message.round}/z{p}" for p in range(1, degree + 1)]
        payload = [self.encryption.encrypt(n, z**p) for p, n in enumerate(names, 1)]
        sealed = self._seal(b"".join(payload), degree * len(z), "EncryptedScores")
        return EncryptedScores(self.name, message.round, sealed)

    @handles(
        EncryptedResiduals,
        round="the round that was scored last, once",
        residuals="one for each row of the round; a party cannot read them",
    )
    def descend(self, message: EncryptedResiduals) -> None:
        """Take a step along the gradient."""
        check_equal(message, "round", self.scored.last, "the round that was scored last")
        rows = self._batch(message.round)
        if message.residuals.shape != (rows.stop - rows.start,):
            refuse(message, "residuals", f"the round has {rows.stop - rows.start} rows")
        self.stepped.take(message, "round")
        self._descend(message)

    @handles(RowsToScore, rows="not read: all rows to predict are scored")
    def score_rows(self, message: RowsToScore) -> ScoresOfRows:
        """Answer with the scores of test rows."""
        return ScoresOfRows(self.name, self._scored(self.queries))


class ActiveRegression(Holder, Coordinator):
    """The party with the labels. It is the coordinator."""

    role = ACTIVE

    def train(self, net: Network) -> HeldWeights:  # type: ignore[override]
        """Agree on columns and key, then take a step in every round."""
        self._settle(net)
        for round in range(self.params.rounds):
            replies: list[EncryptedScores] = []
            if self.passive:
                reason = "the contributions of the receiver's columns to the scores, encrypted"
                replies = net.request(PASSIVE, ScoresRequest(round), reason=reason)
            residuals = self._residuals(round, replies)
            if self.passive:
                net.send(PASSIVE, residuals, reason="residuals, sealed, for your gradient")
            self._descend(residuals)
        return HeldWeights(from_fixed_point(self.weights, self.params.bits))

    def _settle(self, net: Network) -> None:
        """Add intercept and random columns, and exchange key and standardisation."""
        p, y = self.params, self.local_data.y
        assert y is not None
        self.passive = bool(net.members(PASSIVE))
        (key,) = net.request(ARBITER, KeyRequest(), reason="the key that scores are sealed with")
        self.encryption.learn(key.key.payload, key.bits)
        if self.passive:
            net.request(PASSIVE, key, reason="the key, and how you standardise your columns")
        self.center, self.spread = 0.0, 1.0
        if not self.schema.classes:
            self.center, self.spread = float(y.mean()), float(y.std())
        target = (y.astype(np.float64) - self.center) / self.spread
        self.target = to_fixed_point(target, p.bits)
        ones = np.full((len(y), int(p.intercept)), 1 << p.bits, dtype=object)
        randomness = self.streams.noise.rng("fake").normal(0.0, p.fake_scale, (len(y), p.fake))
        design = np.concatenate([self.design, ones, to_fixed_point(randomness, p.bits)], axis=1)
        self.design = shorten_rows(design, p.bits, self.bounds)
        self.weights = to_python_integers(np.zeros(self.design.shape[1], dtype=np.int64))
        kinds = [INTERCEPT] * int(p.intercept) + [RANDOMNESS] * p.fake
        columns = np.concatenate([self.local_data.columns, kinds]).astype(np.int32)
        noted = (columns, pack_integers(self.design), pack_integers(self.target), p.bits)
        reason = "my columns and labels, as I compute with them"
        net.record_opened(OwnDesign(*noted, self.center, self.spread), reason=reason)

    def _residuals(self, round: int, replies: list[EncryptedScores]) -> EncryptedResiduals:
        """Return the encrypted ``link(z) - y`` from all parties' scores."""
        p, degree = self.params, len(self.link) - 1
        rows, local_scores = self._batch(round), self._own_scores(round)
        m = len(local_scores)
        bits, size = p.residual_bits(self.schema), self.encryption.nbytes(m)
        # All terms get the same number of binary places, so that integers can be added.
        factors = [int(c * (1 << SIGMOID_BITS)) for c in self.link]
        scale = [factors[k] << (2 * p.bits * (degree - k)) for k in range(degree + 1)]
        plain = sum((scale[k] * local_scores**k for k in range(degree + 1)), 0 * local_scores)
        plain = plain - (self.target[rows] << (bits - p.bits))
        parts: dict[str, tuple[bytes, Integers]] = {}
        for reply in replies:
            # Binomial expansion of (local + passive scores)^n in powers of the passive scores.
            for k in range(1, degree + 1):
                factor = sum(
                    (scale[n] * comb(n, k) * local_scores ** (n - k) for n in range(k, degree + 1)),
                    0 * local_scores,
                )
                payload = reply.scores.payload[(k - 1) * size : k * size]
                parts[f"{reply.party}/{round}/z{k}"] = (payload, factor)
        payload = self.encryption.combine(f"{round}/d", parts, plain)
        return EncryptedResiduals(round, self._seal(payload, m, "EncryptedResiduals"))

    def predict(self, net: Network) -> NDArray[np.float64]:
        """Return the predictions of test rows from the contributions of all parties' columns."""
        z = self._scored(self.queries)
        if self.params.intercept:
            z = z + from_fixed_point(self.weights[len(self.local_data.columns)], self.params.bits)
        if self.passive:
            reason = "the contributions of the receiver's columns to the scores of rows to predict"
            for reply in net.request(PASSIVE, RowsToScore(len(z)), reason=reason):
                z = z + reply.scores
        kind = self.params.kind_for(self.schema)
        return predict_from_scores(kind, z, self.center, self.spread, bool(self.schema.classes))
