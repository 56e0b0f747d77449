"""What every protocol is: parties and a coordinator, run over a federation's local data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.channel import Change, SumOfShares
from fedtrees.core.codec import encode
from fedtrees.core.composition import Composition
from fedtrees.core.defense import Place
from fedtrees.core.deployment import Deployed
from fedtrees.core.errors import ProtocolError
from fedtrees.core.files import write_whole
from fedtrees.core.guarantee import Guarantee, NoGuarantee
from fedtrees.core.local_data import Declared, LocalData, client_names
from fedtrees.core.messages import Message
from fedtrees.core.model import Model
from fedtrees.core.network import LocalNetwork, Network
from fedtrees.core.party import Party
from fedtrees.core.reasons import Reason
from fedtrees.core.rows import LOCAL_ONLY
from fedtrees.core.schema import Schema
from fedtrees.core.sealed import Sealing
from fedtrees.core.streams import Streams
from fedtrees.core.transcript import Transcript
from fedtrees.core.view import Seen, View
from fedtrees.messages.models import as_message
from fedtrees.trees.forest.random_decision import undeclared

if TYPE_CHECKING:
    from fedtrees.protocols.training import Training

#: `Protocol.file` of a model that is no forest: as messages are encoded.
ENCODED_FILE = (".ftm", "a model that is no forest; XGBoost has no such one")


class Coordinator(Party):
    """The party that drives; the others answer.

    `model`: What `train` returned, as the defenses left it.
    """

    role = "server"
    model: Any

    def train(self, net: Network) -> Model:
        """Run the protocol and return the model it ends with."""
        raise TypeError(f"{type(self).__name__} must define train(net)")

    def predict(self, net: Network) -> NDArray[np.float64]:
        """Return the scores of everybody's `queries`; only where no model is released."""
        raise TypeError(f"{type(self).__name__} must define predict(net): no model is released")

    def leaves(self, net: Network) -> NDArray[np.int32]:
        """Return the leaves of everybody's `queries`, int32, (n, T); only where no model is."""
        raise ProtocolError(f"a {type(self).__name__} answers no leaf ids; ask for scores")

    def finished(self, net: Network) -> None:
        """Do what is left to do once the defenses have left `model` as it stays."""


class Protocol(ABC):
    """Base of all protocols: a frozen dataclass whose fields are public parameters.

    Attributes
    ----------
    name : str
        Set by ``@register.protocol``.
    layout : str
        How the data layer spreads a table over the parties that hold some of it
        (`fedtrees.data.layout`): ``horizontal``, ``vertical``, ``centralised``.
    holders : tuple of str
        Roles that hold data.
    says : tuple of Message types
        What may cross in training; defenses that act on nothing of it are refused.
    sometimes : mapping of Message type to str
        Of `says`, what crosses only under some parameters or defenses, each with when.
    serves : frozenset of str
        Hooks and limits of defenses that its parties keep to (`fedtrees.protocols.fit`): of
        ``rows``, ``candidates``, ``shown``, ``gradient_clip``, ``least_leaf_rows``,
        ``poisson_sampling``, ``declared_rows`` and ``row_bounds``.
    summed : tuple of Message types
        Replies of which the coordinator learns only the sum, by an ideal secure sum.
    noised : tuple of Message types
        What a protocol that claims a budget adds noise to, at its holders or on the way from them:
        no defense may act there before. Empty: anything that it says.
    released : bool
        Whether the model is told to the role ``public``; otherwise nobody holds it whole.
    adversaries : tuple of str
        Threats under which a suite attacks it that names none of its roles.
    usual_parties : int
        How many hold data where nobody says it.
    alone : str
        What the reference is called of who holds labels and trains with nobody else.
    example : str
        A dataset that needs no file to show it on.
    called : mapping of str to (str, str)
        What a reader calls one party of a role, and several.
    file : tuple of str
        How the name of a file with its model ends, and what that is.
    needs : tuple of str
        Modules of an extra that it trains with.
    deployed : mapping of str to Deployed
        Systems that run it, with what is set there.
    peers : bool
        Whether parties tell one another what no coordinator asked for.
    """

    name: ClassVar[str] = "protocol"
    layout: ClassVar[str] = "horizontal"
    holders: ClassVar[tuple[str, ...]] = ("client",)
    says: ClassVar[tuple[type[Message], ...]] = ()
    sometimes: ClassVar[Mapping[type[Message], str]] = {}
    serves: ClassVar[frozenset[str]] = frozenset()
    summed: ClassVar[tuple[type[Message], ...]] = ()
    noised: ClassVar[tuple[type[Message], ...]] = ()
    released: ClassVar[bool] = True
    adversaries: ClassVar[tuple[str, ...]] = ("client",)
    usual_parties: ClassVar[int] = 3
    alone: ClassVar[str] = LOCAL_ONLY
    example: ClassVar[str] = "breast-cancer"
    called: ClassVar[Mapping[str, tuple[str, str]]] = {
        "server": ("your server", "servers"),
        "client": ("one of the clients", "clients together"),
        "public": ("a recipient of the released model", "recipients of the released model"),
    }
    file: ClassVar[tuple[str, str]] = (".json", "an XGBoost model")
    needs: ClassVar[tuple[str, ...]] = ()
    deployed: ClassVar[Mapping[str, Deployed]] = {}
    peers: ClassVar[bool] = False

    def roles(self, parties: int) -> Mapping[str, str]:
        """Return the role of every party by name, given how many hold data.

        The order is that in which they join, and get their local data.
        """
        return {"server": "server", **dict.fromkeys(client_names(parties), "client")}

    def holder_names(self, parties: int) -> list[str]:
        """Return the names of the parties that hold data, in order."""
        return [name for name, role in self.roles(parties).items() if role in self.holders]

    @abstractmethod
    def party(
        self, name: str, role: str, held: LocalData | None, schema: Schema, defense: Composition
    ) -> Party:
        """Make one party around what it holds; one of them is a `Coordinator`."""

    @classmethod
    def missing(cls) -> list[str]:
        """Return the modules it needs that are not installed."""
        return [module for module in cls.needs if find_spec(module) is None]

    def claim(self) -> Guarantee:
        """State what the protocol guarantees by itself; most protocols guarantee nothing."""
        return NoGuarantee()

    def claimed(self, defense: Composition) -> Guarantee:
        """State what it guarantees where a defense settles cut points; by default `claim`."""
        return self.claim()

    def spent(self, transcript: Transcript) -> Guarantee:
        """Compose what a run of the protocol by itself spent; by default the claim."""
        return self.claim()

    def laws(self, schema: Schema) -> Mapping[Place, Change]:
        """State what the protocol itself does to what rows bring (`Defense.channels`)."""
        return {}

    def stated_laws(self, schema: Schema, parties: int) -> Mapping[Place, Change]:
        """Return `laws` for a given number of parties that hold data.

        The law of a released sum depends on how many noise shares it contains.
        """
        resolved: dict[Place, Change] = {}
        for place, change in self.laws(schema).items():
            if isinstance(change, SumOfShares):
                total = change.share.law(parties)
                assert total is not None
                change = total
            resolved[place] = change
        return resolved

    def check_parties(self, parties: int) -> None:
        """Refuse a number of parties with data that the parameters do not suit (`UsageError`)."""
        return

    def exact(self) -> Protocol | None:
        """Return the same protocol without what `laws` states, drawn otherwise alike; None: no."""
        return None

    def nodes_shown(self, view: View) -> Iterator[NDArray[np.int32]]:
        """Yield the rows of every node that somebody is shown; none where nodes are not shown."""
        return iter(())

    def save(self, training: Training, path: Path) -> None:
        """Write a trained model into a file with the suffix of `file`.

        An XGBoost model takes the values of the table, not codes (`in_table_values`).

        Raises `DataError` if the file cannot be written, or cannot contain the values of a column.
        """
        if self.file == ENCODED_FILE:
            write_whole(path, encode(as_message(training.model)))
            return
        from fedtrees.trees.boosted.params import TreeParams
        from fedtrees.trees.files.categories import in_table_values
        from fedtrees.trees.files.xgboost import save_xgboost, writable

        names = training.schema.names
        params = self if isinstance(self, TreeParams) else None
        forest, categories = in_table_values(training.model, training.schema.features)
        save_xgboost(forest, path, len(names), writable(names), params, categories)

    def canaries(self) -> Any:
        """Make the rows an audit looks for (`fedtrees.protocols.canaries.Canaries`), or None."""
        return None

    def worst_case(self, defense: Composition) -> tuple[Protocol, Any] | None:
        """Return the parameters, and the rows, by which an audit sees most of a row; None: as is.

        A claim of epsilon holds whatever the table and the public parameters are, so that an
        auditor chooses both: one tree, few columns, gradients near their bound.
        """
        return None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The public parameters, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}  # type: ignore[arg-type]

    def check(self, schema: Schema) -> None:  # noqa: B027 - most take any target
        """Refuse a target that this protocol cannot train on.

        Raises `UsageError`.
        """

    def check_held(self, name: str, held: LocalData, schema: Schema) -> None:  # noqa: B027
        """Refuse what one party holds, at its host, before it is made.

        Raises `DataError`.
        """

    def check_declared(self, said: Mapping[str, Declared], schema: Schema) -> None:  # noqa: B027
        """Refuse what the parties say they hold together, by name.

        Raises `DataError`.
        """

    def grown_on(
        self, n: int, streams: Streams, round: int, defense: Composition | None = None
    ) -> NDArray[np.bool_] | None:
        """Return which of a party's n rows a round of training uses, bool (n,); None: all.

        ``streams`` are the party's; a ``defense`` may say how rows are drawn. What the harness
        knows, and nobody else does.
        """
        return None

    def sealing(self) -> Sealing | None:
        """Say how one run computes on sealed values; None: nothing is sealed."""
        return None

    def opened_together(self, seen: Sequence[Seen], sealing: Mapping[str, Any]) -> list[Seen]:
        """Return what colluding parties open of what they saw, as one alone could not; nothing.

        ``sealing`` is what each of them computes with, by name.
        """
        return []

    def lacks(self, schema: Schema, defense: Composition) -> Reason | None:
        """Return what such a table lacks for this protocol under a defense, None if nothing."""
        plan = defense.cut_plan
        return undeclared(schema) if plan is not None and plan.method == "public" else None

    def predict(
        self, net: LocalNetwork | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.float64]:
        """Return the scores of rows that nobody trained on; by default of the model alone.

        A model that nobody holds whole predicts by messages, which are on record.

        Parameters
        ----------
        net : LocalNetwork or None
            Of the training; None where that was in an earlier process.
        model : Model
            What the coordinator ended with.
        queries : mapping of str to LocalData
            What each holder has of the rows, without labels.
        """
        if self.released:
            scores: NDArray[np.float64] = model.predict(next(iter(queries.values())).X)
            return scores
        return _still_there(net).predict(queries)

    def leaves(
        self, net: LocalNetwork | None, model: Model, queries: Mapping[str, LocalData]
    ) -> NDArray[np.int32]:
        """Return the leaf of every row in every tree, int32, shape (n, T); otherwise as `predict`.

        Raises `ProtocolError` if the model has no leaves.
        """
        if not self.released:
            return _still_there(net).predict(queries, "leaves")
        reached = getattr(model, "apply", None)
        if reached is None:
            raise ProtocolError(f"a {type(model).__name__} has no leaves; ask for scores")
        leaves: NDArray[np.int32] = reached(next(iter(queries.values())).X)
        return leaves


def _still_there(net: LocalNetwork | None) -> LocalNetwork:
    if net is None:
        raise ProtocolError("nobody holds this model whole, and its parties are gone: train it")
    return net
