"""Views: everything that an adversary knows after a run, and nothing else.

An adversary consists of one or more parties, the principals. Its view contains their local data,
the messages that they received or sent, and public parameters. A view is the only input of an
attack (`fedtrees.core.attack`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from fedtrees.core.channel import Change, Channel, chained
from fedtrees.core.composition import Composition
from fedtrees.core.endpoint import Oracle
from fedtrees.core.local_data import KnownEntries, LocalData, stacked
from fedtrees.core.messages import Message, has_sealed_field
from fedtrees.core.schema import Schema, Table
from fedtrees.core.transcript import Transcript

M = TypeVar("M", bound=Message)
#: Former names of attributes of `View`. Attacks can still read them in this release.
_FORMER_ATTRIBUTES = {
    "own": "local_data", "known": "known_labels", "entries": "known_entries",
    "asked": "queried_rows", "stated": "protocol_changes",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Seen:
    """One message as a principal saw it.

    Attributes
    ----------
    round : int
        Number of requests that the coordinator had made before.
    sender : str
        Name of the sender. For a sum that the principal opened itself, the principal.
    receivers : tuple of str
        Names of the receivers.
    message : Message
        The message.
    reason : str
        Reason that the protocol gives for this disclosure.
    """

    round: int
    sender: str
    receivers: tuple[str, ...]
    message: Message
    reason: str

    @property
    def opened(self) -> bool:
        """Whether the message is a sum that its receiver opened, and not one that it received."""
        return self.receivers == (self.sender,)


@dataclass(frozen=True, eq=False)
class View:
    """Everything that the principals of a threat model know after a run.

    Seven attributes contain rows or parts of rows. In the example, "client" and "active" are
    threat models with one principal:

    ================= ============================ ======================= ========================
    Attribute         Rows, columns, labels        Provided by             Example
    ================= ============================ ======================= ========================
    ``local_data``    per principal: local rows,   the principal           60 rows of ``client-1``
                      local columns, labels if the
                      principal has them
    ``rows``          all columns and labels; None computed from           the same 60 rows, if the
                      if no principal has          ``local_data``          partition is horizontal
                      complete rows
    ``prior_rows``    all columns and labels       ``rows``, else          the prior of TimberStrike
                                                   ``population``
    ``population``    all columns and labels, of   the bench, if the       rows of the test set, for
                      no party                     principals have no rows the threat ``server``
    ``known_labels``  ids and labels, no columns   the threat model        ``active[labels=10]``
    ``known_entries`` single cells of other        the threat model        ``active[entries=30]``
                      parties' rows
    ``candidates``    all columns and labels; some the metric of           half members, half other
                      are training rows            membership inference    rows
    ``queried_rows``  local columns of the rows to the threat model        ``active[queries=40,
                      predict, by position                                 records=new]``
    ================= ============================ ======================= ========================

    Attributes
    ----------
    principals : tuple of str
        Names of the colluding parties.
    roles : mapping of str to str
        Role of every party by name (public).
    local_data : tuple of LocalData
        Local data of each principal that has any.
    schema : Schema
        Columns and classes of the table (public).
    protocol : str
        Name of the protocol.
    parameters : mapping
        Public parameters of the protocol.
    n_rows : int
        Declared number of training rows of all parties, including the principals.
    defense : Composition
        Defenses of the run. Their parameters are public, their randomness is not.
    seen : tuple of Seen
        Messages that a principal received or sent, in order. `Sealed` fields stay sealed, except
        for those that a principal sealed itself. Together with its rows, these contain all that it
        knows about its randomness.
    oracle : Oracle or None
        Inference endpoint, if the threat model includes queries.
    known_labels : LocalData or None
        Ids and labels, without columns, of the training rows whose labels the threat model declares
        known.
    known_entries : KnownEntries or None
        Single values of other parties' rows that the threat model declares known.
    candidates : Table or None
        Candidate rows of membership inference. Some of them are training rows.
    protocol_changes : tuple of (str, str, Change)
        Message type, field, and the change of this field that the protocol itself declares.
    weighted : bool
        Whether rows have sample weights. This is public, as their number is.
    behaviours : tuple of str
        Behaviours of the principals that deviate from the protocol.
    queried_rows : LocalData or None
        The principals' columns of the rows to predict, by position, if the endpoint answers queries
        about these rows (``records=new``).
    population : Table or None
        Background knowledge of an adversary without local rows: rows with labels that were drawn
        from the same population and that no party of the federation has. None of them is a training
        row. The bench passes the rows that the population baseline is computed from
        (`fedtrees.metrics.metric.Case.background`). None if the principals have local rows, and for
        attacks on membership, because the non-members among their candidates are such rows.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from fedtrees import FederatedGBDTClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = FederatedGBDTClassifier(n_estimators=1, max_depth=2, random_state=0).fit(X, y)
    >>> model.view("server")
    <View of server in fedtree-hist: 569 training rows, 23 messages>
    """

    principals: tuple[str, ...]
    roles: Mapping[str, str]
    local_data: tuple[LocalData, ...]
    schema: Schema
    protocol: str
    parameters: Mapping[str, Any]
    n_rows: int
    defense: Composition
    seen: tuple[Seen, ...]
    oracle: Oracle | None = None
    known_labels: LocalData | None = None
    known_entries: KnownEntries | None = None
    candidates: Table | None = None
    protocol_changes: tuple[tuple[str, str, Change], ...] = ()
    weighted: bool = False
    behaviours: tuple[str, ...] = ()
    queried_rows: LocalData | None = None
    population: Table | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            present = _FORMER_ATTRIBUTES.get(name)
            if present is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            text = f"View.{name} is now called View.{present}; the former name will be removed"
            warnings.warn(text, FutureWarning, stacklevel=2)
            return getattr(self, present)

    def __repr__(self) -> str:
        parties = "+".join(self.principals)
        return (
            f"<View of {parties} in {self.protocol}: {self.n_rows} training rows, "
            f"{len(self.seen)} messages>"
        )

    @property
    def rows(self) -> Table | None:
        """Complete rows with labels of all principals together, None if they have no such rows."""
        return stacked(self.local_data, self.schema)

    @property
    def prior_rows(self) -> Table | None:
        """Rows from which an attack may estimate the distribution of the victims' rows.

        These are the principals' local rows, or the rows of `population` if they have none. An
        attack uses this property for every prior. It must use `rows` to subtract the principals'
        part from a sum, and wherever a row is assumed to be in the training set, because the rows
        of the population are not.
        """
        rows = self.rows
        return self.population if rows is None or not len(rows) else rows

    def messages(self, kind: type[M]) -> Iterator[tuple[Seen, M]]:
        """Yield the messages of one type without sealed fields, in order.

        The messages that a principal sent are among them. An attack that only wants the messages of
        other parties tests ``item.sender not in view.principals``.

        Parameters
        ----------
        kind : type of Message
            Type of the messages, including subclasses.

        Yields
        ------
        item : Seen
            Sender, receivers and round of the message.
        message : Message
            The message.
        """
        for item in self.seen:
            if isinstance(item.message, kind) and not has_sealed_field(item.message):
                yield item, item.message

    def changes(self, site: type[Message] | str, field: str, role: str = "") -> list[Change]:
        """Return the changes of a field before a role sends it, those of the protocol first.

        Parameters
        ----------
        site : Message type or str
            Site of the change, see `fedtrees.core.defense.Place`.
        field : str
            Name of the field.
        role : str
            Role of the sender. Empty for any role.

        Returns
        -------
        changes : list of Change
            In the order in which they are applied. Empty if the field is sent unchanged.
        """
        name = site if isinstance(site, str) else site.__name__
        stated_changes = [
            change
            for site_name, field_name, change in self.protocol_changes
            if (site_name, field_name) == (name, field)
        ]
        return stated_changes + self.defense.changes(
            (site, field), self.schema, self.parameters, role
        )

    def channel(
        self, site: type[Message] | str, field: str, role: str = "", parties: int = 1
    ) -> Channel | None:
        """Return the channel that a field passed, None if it was sent unchanged.

        Parameters
        ----------
        site : Message type or str
            Site of the change, see `fedtrees.core.defense.Place`.
        field : str
            Name of the field.
        role : str
            Role of the sender. Empty for any role.
        parties : int
            Number of parties whose contributions are summed in the field.

        Returns
        -------
        channel : Channel or None
            Conditional distribution of the sent value, given the true value.
        """
        return chained(self.changes(site, field, role), parties)

    def blinded(self) -> View:
        """Return the same view with an empty transcript: the view of the blind adversary."""
        return replace(self, seen=(), oracle=None, queried_rows=None)


def see(transcript: Transcript, principals: tuple[str, ...]) -> tuple[Seen, ...]:
    """Return the messages that the principals received or sent.

    Parameters
    ----------
    transcript : Transcript
        All messages of a run.
    principals : tuple of str
        Names of the colluding parties.

    Returns
    -------
    tuple of Seen
        Messages in order. Of a message that a principal sealed itself, the plain content.
    """
    names, plain_replies = set(principals), transcript.plain_replies
    return tuple(
        Seen(d.round, d.sender, d.receivers, d.message, d.reason)
        # Only the sender of a sealed reply may see its plain content.
        if d.sender not in names
        else Seen(d.round, d.sender, d.receivers, plain_replies.get(d.index, d.message), d.reason)
        for d in transcript
        if d.sender in names or names & set(d.receivers)
    )
