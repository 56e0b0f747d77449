"""Training of a protocol in one process, and its result.

`train` creates a host and a party for every name, connects them to a `Network`, and runs the
coordinator. `Training` contains the model and the transcript.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Share
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Context, ExampleStage
from fedtrees.core.errors import DataError, FedtreesError, UsageError
from fedtrees.core.guarantee import ApproximateDP, Guarantee, PureDP, without_noise
from fedtrees.core.host import Agreement, Host
from fedtrees.core.local_data import (
    LocalData,
    LocalDataSummary,
    check_ids,
    check_own,
    check_together,
    rows_declared,
)
from fedtrees.core.messages import EncryptedComputation, Message
from fedtrees.core.network import Network
from fedtrees.core.party import Party, acting, install_behaviour
from fedtrees.core.reasons import Unfit
from fedtrees.core.schema import Schema
from fedtrees.core.secure_sum import SecureAggregation
from fedtrees.core.streams import NoiseFrom, Streams
from fedtrees.core.transcript import Transcript
from fedtrees.messages.models import as_message
from fedtrees.privacy.accounting import AdversaryEpsilon, epsilon_by_adversary, for_each_party
from fedtrees.protocols.base import Coordinator, Protocol, Seat
from fedtrees.protocols.compatibility import KnownFacts, check_channels, check_fit

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Training:
    """Result of a training.

    Attributes
    ----------
    model : Model
        Final model of the coordinator. The released model if the protocol releases one. None if an
        honest party stopped the run.
    transcript : Transcript
        All messages, costs and privacy-loss events.
    protocol : Protocol
        The protocol that ran.
    defense : Composition
        The defenses of the run.
    schema : Schema
        Columns and target.
    n_rows : int
        Number of training rows over all parties.
    context : Context
        Context of the coordinator, which answers to queries need.
    columns : mapping of str to intp array
        Columns of each party with data, by name.
    net : Network or None
        The parties, which can be queried again. None if the training ran in an earlier process.
    noise_from : {"system", "seed"}
        Source of noise (`fedtrees.core.streams.NoiseFrom`).
    void : bool
        True if no claim that depends on noise is valid (`to_rely_on`).
    behaviours : mapping of str to str
        Behaviour of each malicious party, by name.
    refused : str
        Message of the honest party that stopped the run. Empty if the run finished.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedGBDTClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FederatedGBDTClassifier(n_estimators=1, max_depth=2, random_state=0).fit(X, y)
    >>> model.training_
    <Training of fedtree-hist with none: 569 rows, 23 messages>
    """

    model: Any
    transcript: Transcript
    protocol: Protocol
    defense: Composition
    schema: Schema
    n_rows: int
    context: Context
    columns: Mapping[str, NDArray[np.intp]]
    net: Network | None = None
    noise_from: NoiseFrom = "seed"
    void: bool = False
    behaviours: Mapping[str, str] = field(default_factory=dict)
    refused: str = ""

    def __repr__(self) -> str:
        defense = "+".join(part.name for part in self.defense.parts) or "none"
        messages = len(self.transcript.deliveries)
        return (
            f"<Training of {self.protocol.name} with {defense}: {self.n_rows} rows, "
            f"{messages} messages>"
        )

    def to_rely_on(self) -> Training:
        """Return the run as a data owner may rely on it: noise from a seed gives no privacy.

        Anyone with the seed can reproduce such noise. An experiment measures the leak under noise
        of the same distribution, and keeps the claim as a hypothesis.
        """
        return replace(self, void=self.noise_from == "seed")

    def __getstate__(self) -> dict[str, Any]:
        # The parties stay in this process. Their local data must not reach another one.
        return {**self.__dict__, "net": None}

    def predict(self, X: NDArray[np.float32], on: Transcript | None = None) -> NDArray[np.float64]:
        """Return the answers of an inference endpoint to queries.

        Parameters
        ----------
        X : float32 array, shape (n, d)
            Test rows.
        on : Transcript or None
            Transcript that records the messages of a joint prediction. None for the
            network's transcript of predictions.

        Returns
        -------
        scores : float64 array, shape (n,) or (n, K)
            Probabilities of class 1 if there are two classes, of each class if there are more, or
            predicted values.
        """
        return self.defense.transform_answer(
            self._asked(self.protocol.predict, X, on), self.context
        )

    def leaves(self, X: NDArray[np.float32], on: Transcript | None = None) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree.

        Parameters
        ----------
        X : float32 array, shape (n, d)
            Test rows.
        on : Transcript or None
            As in `predict`.

        Returns
        -------
        leaves : int32 array, shape (n, T)
            Leaf that row i reaches in tree t, numbered within the tree.

        Raises
        ------
        ProtocolError
            If the model has no leaves, or if no party has the complete model and the parties of the
            training no longer exist.
        """
        return self._asked(self.protocol.leaves, X, on)

    @property
    def claims(self) -> list[Guarantee]:
        """Claimed guarantees of the protocol and of each part of the defense, in that order."""
        return [self.protocol.claim_with(self.defense), *self.defense.claims()]

    @property
    def spent(self) -> list[Guarantee]:
        """Guarantees that the protocol and each part of the defense spent, in that order."""
        guarantees = [self.protocol.spent(self.transcript), *self.defense.spent(self.transcript)]
        return [without_noise(g) for g in guarantees] if self.void else guarantees

    @property
    def epsilons(self) -> tuple[AdversaryEpsilon, ...]:
        """Privacy loss of one row against each adversary. Empty if no finite epsilon was spent.

        It is also empty if a part states an epsilon although the run recorded no noisy release.

        An outsider, coalitions of clients, and trusted roles have different epsilons if clients
        share the noise, because a client knows its share.
        """
        with_epsilon = [g for g in self.spent if isinstance(g, PureDP | ApproximateDP)]
        if not with_epsilon or any(math.isinf(g.epsilon) for g in with_epsilon):
            return ()
        # One delta for the composition of all parts: the largest that any of them claims.
        delta = max(getattr(g, "delta", 0.0) for g in with_epsilon)
        events = self.transcript.events
        # Without recorded releases nothing can be composed, and the sum would be 0.
        if not events and any(g.epsilon for g in with_epsilon):
            return ()
        # Releases over all rows compose once. Releases over single clients' rows compose per
        # client.
        everyone = [e for e in events if e.party not in self.columns]
        single = [e for e in events if e.party in self.columns]
        return epsilon_by_adversary(for_each_party(everyone, single), delta)

    @property
    def splits(self) -> dict[tuple[int, int], tuple[str, int, float]]:
        """Owner, column and threshold of splits that only their owner knows, by tree and node.

        Only the harness uses it. Empty if the model is released or the parties are gone.
        """
        return {
            at: (name, *split)
            for name, party_splits in self._read_truth(Party.own_thresholds).items()
            for at, split in party_splits.items()
        }

    @property
    def bins_of_rows(self) -> dict[tuple[str, int], NDArray[np.int64]]:
        """Bins of the rows of each party, by name and column, -1 for a missing value.

        Only the harness uses it. Empty if parties have no local bins, or are gone.
        """
        return {
            (name, c): bin
            for name, party_bins in self._read_truth(Party.own_bins).items()
            for c, bin in party_bins.items()
        }

    def _read_truth(self, method: Callable[[Party], T]) -> dict[str, T]:
        """Return the result of a method of every party, by party. Empty if the parties are gone."""
        hosts = {} if self.net is None else self.net.hosts
        return {name: host.read_truth(method) for name, host in hosts.items()}

    def _asked(
        self, answer: Callable[..., NDArray[Any]], X: NDArray[np.float32], on: Transcript | None
    ) -> NDArray[Any]:
        """Distribute test rows over the parties and call `answer`, recording messages on `on`."""
        rows = np.arange(len(X))
        queries = {
            name: LocalData(rows, columns, np.asarray(X, dtype=np.float32)[:, columns])
            for name, columns in self.columns.items()
        }
        if self.net is None or on is None:
            return answer(self.net, self.model, queries)
        previous, self.net.inference = self.net.inference, on
        try:
            return answer(self.net, self.model, queries)
        finally:
            self.net.inference = previous


def train(
    protocol: Protocol,
    local_data: Mapping[str, LocalData],
    schema: Schema,
    *,
    defense: Composition | None = None,
    seed: int = 0,
    noise_from: NoiseFrom = "system",
    behaviours: Mapping[str, str] | None = None,
) -> Training:
    """Train a protocol in one process.

    Parameters
    ----------
    protocol : Protocol
        Protocol with its public parameters.
    local_data : mapping of str to LocalData
        Local data of each party that has some, by name (`fedtrees.core.local_data.over_clients`).
    schema : Schema
        Columns and target.
    defense : Composition, optional
        None for no defense.
    seed : int
        Seed of all random draws except noise.
    noise_from : {"system", "seed"}
        Source of noise and of samples that hide a row. With ``seed``, the run can be repeated, and
        no claim that depends on noise is valid.
    behaviours : mapping of str to str, optional
        Behaviour of each malicious party, by name. The run ends when an honest party refuses a
        message.

    Returns
    -------
    training : Training
        Model, transcript and parties.

    Raises
    ------
    DataError
        If no party has a row.
    UsageError
        If the names are not those of the protocol.
    Unfit
        If the defense or a behaviour is incompatible with the protocol.
    UnguardedMessageError
        If a defense receives a message that it does not handle.

    Examples
    --------
    >>> from fedtrees.core.local_data import over_clients
    >>> from fedtrees.core.schema import Feature, Schema, Table
    >>> from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
    >>> X = np.arange(40, dtype=np.float32).reshape(20, 2)
    >>> table = Table(X, (X[:, 0] > 20).astype(np.int64))
    >>> schema = Schema((Feature("a"), Feature("b")), "y")
    >>> training = train(FedTreeHist(trees=2), over_clients([table, table]), schema)
    >>> len(training.model.trees)
    2
    """
    defense = defense or Composition()
    if not local_data or not sum(map(len, local_data.values())):
        raise DataError("a federation needs at least one party with at least one row")
    expected = protocol.holder_names(len(local_data))
    if expected != list(local_data):
        raise UsageError(
            f"{protocol.name!r} wants the local data of {', '.join(expected)}, in that order; got "
            f"{', '.join(local_data)}"
        )
    agreement = make_agreement(protocol, schema, defense, len(local_data))
    n_rows = _check_tables(protocol, agreement, local_data)
    encryption = protocol.encrypted_computation()
    declared = {name: LocalDataSummary.of(part) for name, part in local_data.items()}
    net = Network(agreement, Streams(seed, noise_from), declared)
    for name in agreement.roles:
        # Every party has separate streams, so that no party can reproduce the noise of another one.
        streams = Streams(seed, noise_from)
        local, sums = local_data.get(name), net.aggregation
        net.join(create_host(protocol, agreement, name, streams, sums, local, encryption))
    # A malicious party is created as an honest one, and then gets the class of its behaviour.
    cheats, refused = behaviours or {}, ""
    for name, host in net.hosts.items():
        if name in cheats:
            install_behaviour(host.party, cheats[name])
    try:
        model, context = drive(protocol, net, encryption)
    except FedtreesError as err:
        # An error of an honest run is a defect. With a malicious party it can be a correct refusal.
        if not cheats:
            raise
        model, context, refused = None, net.hosts[net.transcript.coordinator].context, str(err)
    return Training(
        model,
        net.transcript,
        protocol,
        defense,
        schema,
        n_rows,
        context,
        {name: part.columns for name, part in local_data.items()},
        net,
        noise_from,
        behaviours=cheats,
        refused=refused,
    )


def _check_tables(
    protocol: Protocol, agreement: Agreement, local_data: Mapping[str, LocalData]
) -> int:
    """Check the tables of all parties, and return the number of distinct training rows."""
    for name, party_data in local_data.items():
        check_own(name, party_data, agreement.schema)
    declared = {name: LocalDataSummary.of(part) for name, part in local_data.items()}
    # Local data were checked by their party, declarations are checked together.
    n_rows = agreed_row_counts(protocol, agreement, declared)
    check_ids(local_data)
    for name, party_data in local_data.items():
        protocol.check_local_data(name, party_data, agreement.schema)
    return n_rows


def make_agreement(
    protocol: Protocol, schema: Schema, defense: Composition, holders: int
) -> Agreement:
    """Return the public agreement of a run.

    Parameters
    ----------
    protocol : Protocol
        Protocol with its public parameters.
    schema : Schema
        Columns and target.
    defense : Composition
        Defenses of the run.
    holders : int
        Number of parties with data.

    Raises
    ------
    UsageError
        If the parameters do not allow this number of parties.
    Unfit
        If the defense is incompatible with the protocol.
    """
    reason = check_fit(protocol, defense, facts=KnownFacts(schema))
    if not reason.ok:
        raise Unfit(reason)
    roles, parameters = protocol.roles(holders), protocol.parameters
    protocol.check_parties(holders)
    defense.check(roles, parameters)
    shared = _noise_share_types(protocol, schema)
    return Agreement(schema, parameters, defense, roles, protocol.summed_types, shared)


def agreed_row_counts(
    protocol: Protocol, agreement: Agreement, declarations: Mapping[str, LocalDataSummary]
) -> int:
    """Return the number of distinct training rows that the parties declared together.

    Parameters
    ----------
    protocol : Protocol
        Protocol with its public parameters.
    agreement : Agreement
        Public agreement of the run.
    declarations : mapping of str to LocalDataSummary
        Declarations by party name.

    Raises
    ------
    DataError
        If the declarations do not form a table that the protocol can train on.
    """
    n_rows, schema = rows_declared(declarations.values()), agreement.schema
    # A weighted sum is not bounded by the number of rows, so that the check would be wrong.
    if not any(one.weighted for one in declarations.values()):
        check_channels(agreement.defense, schema, agreement.parameters, n_rows)
    check_together(declarations, schema)
    protocol.check_joint_data(declarations, schema)
    return n_rows


def create_host(
    protocol: Protocol,
    agreement: Agreement,
    name: str,
    streams: Streams,
    aggregation: SecureAggregation,
    local_data: LocalData | None,
    encryption: EncryptedComputation | None,
) -> Host:
    """Create the host and the party of one name, and return the host.

    Parameters
    ----------
    protocol : Protocol
        Protocol with its public parameters.
    agreement : Agreement
        Public agreement of the run.
    name : str
        Name of the party.
    streams : Streams
        Randomness of the party.
    aggregation : SecureAggregation
        Secure aggregation of the run.
    local_data : LocalData or None
        Local data of the party, None if it has none.
    encryption : EncryptedComputation or None
        How the run computes on encrypted values.
    """
    sides: dict[str, Any] = {"aggregation": aggregation, "encryption": encryption}
    host = Host(agreement, name, streams, local_data=local_data, **sides)
    host.join(_made(protocol, host, local_data))
    return host


def drive(
    protocol: Protocol, net: Network, encryption: EncryptedComputation | None
) -> tuple[Any, Context]:
    """Train over a network in which one local party is the coordinator.

    Parameters
    ----------
    protocol : Protocol
        Protocol with its public parameters.
    net : Network
        Network with all parties.
    encryption : EncryptedComputation or None
        How the run computes on encrypted values.

    Returns
    -------
    model : Model
        The model after the defenses processed it.
    context : Context
        Context of the coordinator.
    """
    coordinator = _driving(protocol, [host.party for host in net.hosts.values()])
    defense = net.defense
    # Defenses that limit leaf sizes or answers act without a message that could record it.
    limits = (
        i
        for i, part in enumerate(defense.parts)
        if part.requirements.min_leaf_rows > 0 or "limit_endpoint" in part.hooks
    )
    net.transcript.acted.update(limits)
    net.transcript.coordinator = coordinator.name
    with acting(coordinator):
        model = coordinator.train(net)
        context = net.hosts[coordinator.name].context
        # Defenses of models act before the model is released or used for predictions.
        coordinator.model = model = defense.repair_model(model, context)
        if protocol.released:
            net.publish(as_message(model), reason="the released model, which is public")
        coordinator.finished(net)
    net.finish(encryption)
    return model, replace(context, ledger=net.transcript.events, acted=net.transcript.acted)


def _noise_share_types(protocol: Protocol, schema: Schema) -> tuple[type[Message], ...]:
    """Return the types of messages that contain a share of noise according to the protocol."""
    laws = protocol.noise_channels(schema).items()
    return tuple(k for (k, _), law in laws if isinstance(law, Share) and not isinstance(k, str))


def _made(protocol: Protocol, host: Host, local: LocalData | None) -> Party:
    """Create a party from its local data, after its defenses changed the labels."""
    schema, defense = host.agreement.schema, host.agreement.defense
    if local is not None and local.y is not None:
        # The hook runs as this party, although the party itself does not exist yet.
        with acting(Party(host.name)):
            # Defenses of labels act before any other computation, so that nothing depends on true
            # labels.
            y = defense.transform_examples(ExampleStage("labels"), local.y, host.context)
        local = local if y is local.y else replace(local, y=y)
    return protocol.create_party(Seat(host.name, host.context.role, local, schema, defense))


def _driving(protocol: Protocol, parties: Sequence[Party]) -> Coordinator:
    """Return the coordinator, the only party that may start training."""
    coordinators = [party for party in parties if isinstance(party, Coordinator)]
    if len(coordinators) != 1:
        raise UsageError(f"{protocol.name!r} needs one coordinator; it has {len(coordinators)}")
    return coordinators[0]
