"""Views: all that the principals of a threat saw, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fedtrees.core.channel import Change, Channel, chained
from fedtrees.core.composition import Composition
from fedtrees.core.local_data import KnownEntries, LocalData, stacked
from fedtrees.core.messages import Message, closed
from fedtrees.core.oracle import Oracle
from fedtrees.core.schema import Schema, Table
from fedtrees.core.transcript import Transcript

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, eq=False)
class Seen:
    """One crossing as a principal saw it; a sum that it opened itself has it as sender."""

    round: int
    sender: str
    receivers: tuple[str, ...]
    message: Message
    why: str

    @property
    def opened(self) -> bool:
        """Whether it is a sum that its receiver opened, rather than what somebody sent."""
        return self.receivers == (self.sender,)


@dataclass(frozen=True, eq=False)
class View:
    """What the principals of a threat know after a run.

    Attributes
    ----------
    principals : tuple of str
        Names of the colluding parties.
    roles : mapping of str to str
        Role of every party by name (public).
    own : tuple of LocalData
        What each principal that holds anything holds.
    parameters : mapping
        The protocol's public parameters.
    n_rows : int
        Declared number of training rows over all parties, own ones included.
    defense : Composition
        What defended the run: its parameters are public, its randomness are not.
    seen : tuple of Seen
        Messages received or sent by a principal, in order. What is `Sealed` in them stays so, but
        for what a principal sealed itself: with its rows that is all it knows of its own
        randomness.
    oracle : Oracle or None
        Answers queries, where the threat has a budget for them.
    known : LocalData or None
        Ids and labels, without columns, of training rows whose labels the threat declares known.
    entries : KnownEntries or None
        Single values of others' rows that it declares known.
    candidates : Table or None
        Rows of which some were trained on, for attacks that tell which.
    stated : tuple of (str, str, Change)
        Type of message, field and what the protocol itself does to it.
    weighted : bool
        Whether rows have sample weights, which is declared as their number is.
    behaviours : tuple of str
        Of principals that cheat.
    asked : LocalData or None
        The principals' own columns of rows to predict, by place, where the endpoint answers about
        these (``records=new``).
    population : Table or None
        Background knowledge of an adversary without local rows: rows with labels that were drawn
        from the same population and that no party of the federation has. None of them is a training
        row. The bench passes the rows that the population baseline is computed from
        (`fedtrees.metrics.metric.Case.background`). None if the principals have local rows, and
        for attacks on membership, because the non-members among their candidates are such rows.
    """

    principals: tuple[str, ...]
    roles: Mapping[str, str]
    own: tuple[LocalData, ...]
    schema: Schema
    protocol: str
    parameters: Mapping[str, Any]
    n_rows: int
    defense: Composition
    seen: tuple[Seen, ...]
    oracle: Oracle | None = None
    known: LocalData | None = None
    entries: KnownEntries | None = None
    candidates: Table | None = None
    stated: tuple[tuple[str, str, Change], ...] = ()
    weighted: bool = False
    behaviours: tuple[str, ...] = ()
    asked: LocalData | None = None
    population: Table | None = None

    @property
    def rows(self) -> Table | None:
        """Whole rows with labels that the principals hold together; None where they hold none."""
        return stacked(self.own, self.schema)

    @property
    def prior_rows(self) -> Table | None:
        """Rows from which an attack may estimate the distribution of the victims' rows.

        These are the principals' own rows, or the rows of `population` if they have none. An attack
        uses this property for every prior. It must use `rows` to subtract the principals' part from
        a sum, and wherever a row is assumed to be in the training set, because the rows of the
        population are not.
        """
        rows = self.rows
        return self.population if rows is None or not len(rows) else rows

    def messages(self, kind: type[M]) -> Iterator[tuple[Seen, M]]:
        """Yield the messages of one type without sealed parts, with how they crossed, in order."""
        for item in self.seen:
            if isinstance(item.message, kind) and not closed(item.message):
                yield item, item.message

    def changes(self, site: type[Message] | str, field: str, role: str = "") -> list[Change]:
        """Return what happens to a field before a role sends it: the protocol's own part first.

        Parameters
        ----------
        site, field
            As of `fedtrees.core.defense.Place`.
        role : str
            Of who sends it; empty: any.
        """
        name = site if isinstance(site, str) else site.__name__
        stated_changes = [
            change for where, what, change in self.stated if (where, what) == (name, field)
        ]
        return stated_changes + self.defense.changes(
            (site, field), self.schema, self.parameters, role
        )

    def channel(
        self, site: type[Message] | str, field: str, role: str = "", parties: int = 1
    ) -> Channel | None:
        """Return the channel that a field passed, None if it is what rows bring.

        Parameters
        ----------
        site, field, role
            As in `changes`.
        parties : int
            How many sent what is the sum of.
        """
        return chained(self.changes(site, field, role), parties)

    def blinded(self) -> View:
        """Return the same view with an empty transcript: what a blind adversary has."""
        return replace(self, seen=(), oracle=None, asked=None)


def see(transcript: Transcript, principals: tuple[str, ...]) -> tuple[Seen, ...]:
    """Return the crossings the principals took part in; what they sealed themselves is open."""
    who, inside = set(principals), transcript.inside
    return tuple(
        Seen(d.round, d.sender, d.receivers, d.message, d.why)
        if d.sender not in who
        else Seen(d.round, d.sender, d.receivers, inside.get(d.index, d.message), d.why)
        for d in transcript
        if d.sender in who or who & set(d.receivers)
    )
