"""Base classes of protocols and coordinators.

A protocol creates the parties of a run, declares the messages that they may send, and states its
own privacy guarantee. One of the parties is the coordinator, which starts the training.
`fedtrees.protocols.training` runs a protocol over the local data of a federation.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.composition import Composition
from fedtrees.core.defense import Channels, Deployed
from fedtrees.core.endpoint import Model
from fedtrees.core.errors import ProtocolError, refuse_old_names
from fedtrees.core.files import write_whole
from fedtrees.core.guarantee import Guarantee, NoGuarantee
from fedtrees.core.local_data import LocalData, LocalDataSummary, client_names
from fedtrees.core.messages import EncryptedComputation, Message
from fedtrees.core.network import Network
from fedtrees.core.parameters import check_parameters
from fedtrees.core.party import Party
from fedtrees.core.reasons import Reason
from fedtrees.core.results import LOCAL_ONLY
from fedtrees.core.schema import Schema, Table
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import Seen, View
from fedtrees.core.wire import encode
from fedtrees.messages.models import as_message
from fedtrees.trees.forest.random_decision import undeclared

if TYPE_CHECKING:
    from fedtrees.protocols.training import Training

#: `ProtocolInfo.model_file` of models that are not forests: the file contains the encoded message.
ENCODED_FILE = (".ftm", "a model that is no forest; XGBoost has no such one")


class Coordinator(Party):
    """The party that starts training. All other parties react to its messages.

    Parameters
    ----------
    name : str
        Name of the party, unique in its network, for example ``server``.

    Attributes
    ----------
    model : Model
        Result of `train` after the defenses processed it.

    Examples
    --------
    >>> from fedtrees import Coordinator, Party
    >>> issubclass(Coordinator, Party)
    True
    """

    role = "server"
    model: Any

    def train(self, net: Network) -> Model:
        """Run the protocol and return the final model.

        Parameters
        ----------
        net : Network
            Sends messages to the other parties and returns their replies.

        Returns
        -------
        model : Model
            The model before the defenses process it (`Defense.repair_model`).
        """
        raise TypeError(f"{type(self).__name__} must define train(net)")

    def predict(self, net: Network) -> NDArray[np.float64]:
        """Return the scores of the test rows that all parties received as `queries`.

        It is called only if the protocol releases no model, so that a prediction needs messages.

        Parameters
        ----------
        net : Network
            Network of the parties.

        Returns
        -------
        scores : float64 array, shape (n,) or (n, K)
            As in `Protocol.predict`.
        """
        raise TypeError(f"{type(self).__name__} must define predict(net): no model is released")

    def leaves(self, net: Network) -> NDArray[np.int32]:
        """Return the leaves of the test rows that all parties received as `queries`.

        It is called only if the protocol releases no model.

        Parameters
        ----------
        net : Network
            Network of the parties.

        Returns
        -------
        leaves : int32 array, shape (n, T)
            As in `Protocol.leaves`.

        Raises
        ------
        ProtocolError
            Always, unless a subclass overrides the method.
        """
        raise ProtocolError(f"a {type(self).__name__} answers no leaf ids; ask for scores")

    def finished(self, net: Network) -> None:
        """Finish the run after the defenses processed `model` and the network published it.

        Parameters
        ----------
        net : Network
            Network of the parties.
        """


_ROLE_LABELS = {
    "server": ("your server", "servers"),
    "client": ("one of the clients", "clients together"),
    "public": ("a recipient of the released model", "recipients of the released model"),
}


@dataclass(frozen=True)
class ProtocolInfo:
    """Declarations of a protocol that do not depend on its parameters.

    A subclass of another protocol changes single fields with
    ``info = replace(FedTreeHist.info, message_types=...)``.

    Attributes
    ----------
    message_types : tuple of Message types
        Messages that training may send. A defense that acts on none of them is refused.
    conditional_types : mapping of Message type to str
        Those of `message_types` that are sent only under some parameters or defenses, with the
        condition as text.
    noised_types : tuple of Message types
        Messages that a protocol with a privacy budget adds noise to, at the parties with data or on
        the way from them. No defense may act there before the noise is added. Empty for all of
        `message_types`.
    capabilities : frozenset of str
        Hooks and limits of defenses that the parties implement
        (`fedtrees.protocols.compatibility`): a subset of ``transform_examples``,
        ``allowed_splits``, ``visible_nodes`` and the limits of `Requirements`.
    peer_to_peer : bool
        True if parties send messages that no coordinator requested.
    adversaries : tuple of str
        Threats that a suite attacks if it names no threat of a role of this protocol.
    default_parties : int
        Default number of parties with data.
    local_reference : str
        Display name of the baseline that each label-holding party trains on its local data.
    example_dataset : str
        Data set of demonstrations. It needs no file.
    role_labels : mapping of str to (str, str)
        Display name of one party of a role, and of several.
    model_file : tuple of str
        Suffix of model files, and a description of the format.
    extra_packages : tuple of str
        Modules that training imports and that only an extra installs.
    deployments : mapping of str to Deployed
        Frameworks that implement the protocol, with the corresponding settings.

    Examples
    --------
    >>> from fedtrees import register
    >>> info = register.get("protocol", "fedtree-hist").info
    >>> sorted(kind.__name__ for kind in info.message_types)[:2]
    ['BaseScore', 'CutPoints']
    """

    message_types: tuple[type[Message], ...] = ()
    conditional_types: Mapping[type[Message], str] = field(default_factory=dict)
    noised_types: tuple[type[Message], ...] = ()
    capabilities: frozenset[str] = frozenset()
    peer_to_peer: bool = False
    adversaries: tuple[str, ...] = ("client",)
    default_parties: int = 3
    local_reference: str = LOCAL_ONLY
    example_dataset: str = "breast-cancer"
    role_labels: Mapping[str, tuple[str, str]] = field(default_factory=lambda: _ROLE_LABELS)
    model_file: tuple[str, str] = (".json", "an XGBoost model")
    extra_packages: tuple[str, ...] = ()
    deployments: Mapping[str, Deployed] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Seat:
    """Place of one party in a run, from which a protocol creates the party.

    Attributes
    ----------
    name, role : str
        Name and role of the party.
    local_data : LocalData or None
        Local data of the party. None if its role has none.
    schema : Schema
        Columns and target.
    defense : Composition
        Defenses of the run.
    """

    name: str
    role: str
    local_data: LocalData | None
    schema: Schema
    defense: Composition

    @property
    def rows(self) -> LocalData:
        """Local data of a party whose role has some."""
        if self.local_data is None:
            raise ProtocolError(f"the role {self.role!r} of {self.name!r} has no local data")
        return self.local_data

    @property
    def table(self) -> Table:
        """Local rows of all columns, with labels."""
        return self.rows.table


#: Former names of the members of a protocol, for one release.
RENAMED = {
    "says": "info.message_types (a field of ProtocolInfo)",
    "sometimes": "info.conditional_types (a field of ProtocolInfo)",
    "noised": "info.noised_types (a field of ProtocolInfo)",
    "serves": "info.capabilities (a field of ProtocolInfo)",
    "peers": "info.peer_to_peer (a field of ProtocolInfo)",
    "adversaries": "info.adversaries (a field of ProtocolInfo)",
    "curious": "info.adversaries (a field of ProtocolInfo)",
    "usual_parties": "info.default_parties (a field of ProtocolInfo)",
    "alone": "info.local_reference (a field of ProtocolInfo)",
    "example": "info.example_dataset (a field of ProtocolInfo)",
    "called": "info.role_labels (a field of ProtocolInfo)",
    "file": "info.model_file (a field of ProtocolInfo)",
    "needs": "info.extra_packages (a field of ProtocolInfo)",
    "deployed": "info.deployments (a field of ProtocolInfo)",
    "summed": "summed_types", "party": "create_party", "claimed": "claim_with",
    "laws": "noise_channels", "exact": "without_noise", "nodes_shown": "visible_node_rows",
    "check_held": "check_local_data",
    "check_declared": "check_joint_data", "check_declarations": "check_joint_data",
    "grown_on": "training_rows", "opened_together": "jointly_opened",
    "lacks": "missing_requirement", "sealing": "encrypted_computation",
    "client": "an entry of party_types", "server": "an entry of party_types",
}  # fmt: skip


class Protocol(ABC):  # noqa: B024 - subclasses have abstract methods
    """Base class of all protocols: a frozen dataclass whose fields are public parameters.

    A protocol is registered with ``@register.protocol(name)``. A subclass must define
    `party_types` (or `create_party`) and `info`, and overrides the methods whose defaults do not
    fit.

    The class has more than 15 public members, because each rule that depends on parameters is a
    method: four checks, five methods about its own noise, and four that only vertical protocols
    need. Most protocols override at most six.

    Attributes
    ----------
    name : str
        Registered name, set by ``@register.protocol``.
    info : ProtocolInfo
        Messages, capabilities, and the facts that benchmarks and reports use.
    layout : {"horizontal", "vertical", "centralised"}
        How the data layer partitions a table over the parties (`fedtrees.data.partition`).
    holders : tuple of str
        Roles that have local data.
    party_types : mapping of str to Party class
        Class of the parties of each role, called as ``kind(seat, protocol)``.
    summed_types : tuple of Message types
        Replies of which the coordinator receives only the sum, by the ideal functionality of a
        secure sum. A property if they depend on parameters.
    released : bool
        True if the model is sent to the role ``public``. Otherwise no party has the complete model,
        and the parties predict together.

    Examples
    --------
    >>> from fedtrees.protocols.horizontal.histogram_protocols import FedTreeHist
    >>> dict(FedTreeHist().roles(2))
    {'server': 'server', 'client-0': 'client', 'client-1': 'client'}
    """

    name: ClassVar[str] = "protocol"
    info: ClassVar[ProtocolInfo] = ProtocolInfo()
    layout: ClassVar[str] = "horizontal"
    holders: ClassVar[tuple[str, ...]] = ("client",)
    party_types: ClassVar[Mapping[str, Callable[[Seat, Any], Party]]] = {}
    summed_types: ClassVar[tuple[type[Message], ...]] = ()
    released: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        refuse_old_names(cls, "protocol", RENAMED)

    def __post_init__(self) -> None:
        check_parameters(self)

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the role of every party by name, for a number of parties with data.

        The parties join the network and receive their local data in this order.

        Parameters
        ----------
        parties : int
            Number of parties with data.

        Returns
        -------
        roles : mapping of str to str
            Role by name, including parties without data such as the server.
        """
        return {"server": "server", **dict.fromkeys(client_names(parties), "client")}

    def holder_names(self, parties: int) -> list[str]:
        """Return the names of the parties with local data, in order.

        Parameters
        ----------
        parties : int
            Number of parties with data.

        Returns
        -------
        names : list of str
            Those names of `roles` whose role is in `holders`.
        """
        return [name for name, role in self.roles(parties).items() if role in self.holders]

    def create_party(self, seat: Seat) -> Party:
        """Create one party of a run. By default, one of the class that `party_types` declares.

        Exactly one of the parties must be a `Coordinator`.

        Parameters
        ----------
        seat : Seat
            Name, role and local data of the party, and the defenses of the run.

        Returns
        -------
        party : Party
            The new party.

        Raises
        ------
        TypeError
            If `party_types` has no class for the role.
        """
        if seat.role not in self.party_types:
            raise TypeError(f"{type(self).__name__} must define party_types or create_party(seat)")
        return self.party_types[seat.role](seat, self)

    @classmethod
    def missing(cls) -> list[str]:
        """Return the names of `ProtocolInfo.extra_packages` that are not installed."""
        return [module for module in cls.info.extra_packages if find_spec(module) is None]

    def claim(self) -> Guarantee:
        """Return the privacy guarantee of the protocol without defenses. The default is none."""
        return NoGuarantee()

    def claim_with(self, defense: Composition) -> Guarantee:
        """Return the guarantee under a defense that chooses the cut points. By default `claim`.

        Parameters
        ----------
        defense : Composition
            Defenses of the run.

        Returns
        -------
        guarantee : Guarantee
            It includes the privacy cost of the cut points if the protocol has a budget itself.
        """
        return self.claim()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose the privacy loss that a run recorded for the protocol. The default is `claim`.

        Parameters
        ----------
        transcript : Transcript
            Messages and noisy releases of the run.

        Returns
        -------
        guarantee : Guarantee
            The guarantee that the run really provided.
        """
        return self.claim()

    def noise_channels(self, schema: Schema) -> Channels:
        """Return how the protocol changes the contributions of rows (compare `Defense.channels`).

        For example, a differentially private protocol states the distribution of its noise.

        Parameters
        ----------
        schema : Schema
            Columns and target.

        Returns
        -------
        channels : mapping of (Message type or str, str) to Change
            Change of every changed field, by site and name of the field. By default, the mapping is
            empty.
        """
        return {}

    def check_parties(self, parties: int) -> None:
        """Check the number of parties with data.

        Parameters
        ----------
        parties : int
            Number of parties with data.

        Raises
        ------
        UsageError
            If the parameters do not allow it.
        """
        return

    def without_noise(self) -> Protocol | None:
        """Return the same protocol without the changes in `noise_channels`.

        All other randomness is equal. None if there is no such protocol.
        """
        return None

    def visible_node_rows(self, view: View) -> Iterator[NDArray[np.int32]]:
        """Return the rows of every node that the messages show.

        Parameters
        ----------
        view : View
            View of one or more parties.

        Returns
        -------
        rows : iterator of int32 array, shape (n,)
            Positions of the n rows of each node. Empty if messages show no nodes.
        """
        return iter(())

    def save(self, training: Training, path: Path) -> None:
        """Write the trained model to a file with the suffix of `ProtocolInfo.model_file`.

        An XGBoost model takes the values of the table, not codes (`with_table_values`).

        Parameters
        ----------
        training : Training
            Result of a training with this protocol.
        path : Path
            File to write.

        Raises
        ------
        DataError
            If the file cannot be written, or cannot contain the values of a column.
        """
        if self.info.model_file == ENCODED_FILE:
            write_whole(path, encode(as_message(training.model)))
            return
        from fedtrees.trees.boosted.params import TreeParams
        from fedtrees.trees.files.categories import with_table_values
        from fedtrees.trees.files.xgboost import save_xgboost, writable

        names = training.schema.names
        # XGBoost's model file also contains training parameters, if the protocol has them.
        params = self if isinstance(self, TreeParams) else None
        forest, categories = with_table_values(training.model, training.schema.features)
        save_xgboost(forest, path, len(names), writable(names), params, categories)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Public parameters by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def check(self, schema: Schema) -> None:  # noqa: B027 - most take any target
        """Check that the protocol can train on the target.

        Parameters
        ----------
        schema : Schema
            Columns and target.

        Raises
        ------
        UsageError
            If it cannot, for example if a forest gets a numeric target.
        """

    def check_local_data(self, name: str, local_data: LocalData, schema: Schema) -> None:  # noqa: B027
        """Check the local data of one party. Its host calls this before it creates the party.

        Parameters
        ----------
        name : str
            Name of the party.
        local_data : LocalData
            Its local data.
        schema : Schema
            Columns and target.

        Raises
        ------
        DataError
            If the protocol cannot train on the data.
        """

    def check_joint_data(  # noqa: B027
        self, declarations: Mapping[str, LocalDataSummary], schema: Schema
    ) -> None:
        """Check what all parties declared about their local data.

        Parameters
        ----------
        declarations : mapping of str to LocalDataSummary
            Declared number of rows, columns and labels, by party name.
        schema : Schema
            Columns and target.

        Raises
        ------
        DataError
            If the declarations do not form a valid table together.
        """

    def training_rows(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which of a party's rows a round of training uses.

        The harness calls this to compute the ground truth. No party of the run knows the result for
        another party.

        Parameters
        ----------
        n : int
            Number of rows of the party.
        streams : Streams
            Randomness of the party.
        round : int
            Number of the round.
        defense : Composition or None
            Defense of the run, which may determine how rows are sampled.

        Returns
        -------
        mask : bool array, shape (n,), or None
            None if the round uses all rows.
        """
        return None

    def encrypted_computation(self) -> EncryptedComputation | None:
        """Create the computation on encrypted values of a run, None if nothing is encrypted."""
        return None

    def jointly_opened(self, seen: Sequence[Seen], encryption: Mapping[str, Any]) -> list[Seen]:
        """Return the messages that colluding parties can decrypt only together. By default none.

        Parameters
        ----------
        seen : sequence of Seen
            Messages in the view of the colluding parties.
        encryption : mapping of str to object
            Cryptographic state of each of them, by name.

        Returns
        -------
        opened : list of Seen
            Decrypted messages. The view of the colluding parties contains them in addition to
            `seen`.
        """
        return []

    def missing_requirement(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return what a table lacks for this protocol under a defense, None if nothing is missing.

        For example, public cut points need a declared range of every column.

        Parameters
        ----------
        schema : Schema
            Columns and target.
        defense : Composition
            Defenses of the run.

        Returns
        -------
        reason : Reason or None
            The missing property of the table.
        """
        plan = defense.cut_plan()
        return undeclared(schema) if plan is not None and plan.method == "public" else None

    def predict(
        self, net: Network | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.float64]:
        """Return the scores of test rows.

        A released model predicts without messages. Otherwise the parties predict together, and the
        transcript records their messages.

        Parameters
        ----------
        net : Network or None
            Network of the training. None if the training ran in an earlier process.
        model : Model
            Final model of the coordinator.
        queries : mapping of str to LocalData
            Test rows by party: the columns of that party, without labels.

        Returns
        -------
        scores : float64 array, shape (n,) or (n, K)
            Probabilities of class 1 if there are two classes, of each class if there are more, or
            predicted values.
        """
        if self.released:
            scores: NDArray[np.float64] = model.predict(_join_columns(queries))
            return scores
        return _still_there(net).predict(queries)

    def leaves(
        self, net: Network | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.int32]:
        """Return the leaf of every test row in every tree, int32, shape (n, T).

        Parameters
        ----------
        net : Network or None
            Network of the training, as for `predict`.
        model : Model
            Final model of the coordinator.
        queries : mapping of str to LocalData
            Test rows by party, as for `predict`.

        Returns
        -------
        leaves : int32 array, shape (n, T)
            Number of the leaf that a row reaches, by row and tree.

        Raises
        ------
        ProtocolError
            If the model has no leaves.
        """
        if not self.released:
            return _still_there(net).predict(queries, "leaves")
        reached = getattr(model, "apply", None)
        if reached is None:
            raise ProtocolError(f"a {type(model).__name__} has no leaves; ask for scores")
        leaves: NDArray[np.int32] = reached(_join_columns(queries))
        return leaves


def _join_columns(queries: Mapping[str, LocalData]) -> NDArray[np.float32]:
    """Return test rows with the columns of all parties at their positions in the schema."""
    first, *rest = queries.values()
    width = 1 + max(int(part.columns.max(initial=-1)) for part in (first, *rest))
    if len(first.columns) == width:  # a party of a horizontal protocol has all columns
        return first.X
    X = np.zeros((len(first), width), np.float32)
    for part in (first, *rest):
        X[:, part.columns] = part.X
    return X


def _still_there(net: Network | None) -> Network:
    """Return the network, or raise `ProtocolError` if the parties of the training are gone."""
    if net is None:
        raise ProtocolError(
            "no party has the complete model, and the parties no longer exist: train it"
        )
    return net
