"""Threat models: the colluding parties, their behaviour and their background knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedtrees.core.endpoint import ANSWERS, RECORDS
from fedtrees.core.errors import UsageError, check_known, closest, did_you_mean
from fedtrees.core.specs import Spec, parse_grid, split_outside
from fedtrees.core.transcript import PUBLIC

_LEAST = {"index": 0, "count": 1, "queries": 1, "labels": 1, "entries": 1, "attributes": 1,
          "sensitive": 0}  # fmt: skip
_WORDS = {"answers": ANSWERS, "records": RECORDS}
#: Parameters of a threat.
PARAMETERS = (*_LEAST, *_WORDS)


@dataclass(frozen=True)
class Threat:
    """Colluding parties (principals) that share their views.

    They are honest-but-curious unless a behaviour is named. A threat is written as roles of the
    protocol, joined by ``+``:

    - ``client`` (the last one), ``client[index=0]``, ``client[count=2]`` (the last two collude),
      ``server``, ``server+client``, ``passive``, or ``public``, a recipient of the released model.
    - ``queries=1000`` adds access to an inference endpoint that answers 1000 rows.
      ``answers=leaf-ids`` selects the kind of its answers (`Oracle`). With ``records=held`` (or
      ``new``, for rows to predict) the principals cannot choose the values of the victims' columns.
    - ``labels=20`` adds the labels of 20 training rows, and ``entries=6`` six values of the
      victims' training rows. ``attributes=2`` adds two attributes of all of their rows, where a
      one-hot group is one attribute. ``sensitive=0`` adds all attributes except this one, counted
      from 0, and the labels.
    - ``server:isolating`` is dishonest: it follows this behaviour (`fedtrees.core.party`).

    Attributes
    ----------
    parts : tuple of Spec
        The roles with their parameters.

    Notes
    -----
    Every adversary knows the following public facts: the schema with public ranges and the names of
    all categories and classes (those of the complete table, including test rows), the number of
    rows N, the protocol and its parameters, the defense and its parameters (Kerckhoffs 1883).

    Principals without local rows also know rows of the same population that no party of the
    federation has: the test rows. Attacks receive them as `fedtrees.core.view.View.population`, and
    the population baseline is computed from the same rows. Attacks on membership do not receive
    them, because the non-members among their candidates are such rows.
    """

    parts: tuple[Spec, ...]

    @classmethod
    def parse(cls, text: str, roles: Mapping[str, str] | None = None) -> Threat:
        """Read a threat as written on the command line.

        Parameters
        ----------
        text : str
            The threat.
        roles : mapping of str to str, optional
            Role of every party of the protocol by name. If it is given, roles and numbers of
            parties are checked against it.

        Returns
        -------
        Threat
            The threat, whose parameters are valid.

        Raises
        ------
        UsageError
            If the threat is not valid.
        """
        parts = []
        for piece in split_outside(text, "+"):
            grid = parse_grid(piece)
            if len(grid) != 1:
                raise UsageError(
                    f"threat {piece!r} describes {len(grid)} threats; give --threat once for each"
                )
            spec = grid[0]
            for key, value in spec.params.items():
                if key in _WORDS:
                    check_known(key, value, _WORDS[key])
                    if "queries" not in spec.params:
                        raise UsageError(
                            f"threat {piece!r}: {key}= restricts queries; also give queries="
                        )
                    continue
                if key not in _LEAST:
                    allowed = {**_LEAST, **_WORDS}
                    raise UsageError(
                        f"threat {spec.name!r} has no parameter {key!r}{did_you_mean(key, allowed)}"
                    )
                if type(value) is not int or value < _LEAST[key]:
                    raise UsageError(
                        f"threat {piece!r}: {key}={value} is not a valid number; give a whole "
                        f"number, {_LEAST[key]} or more"
                    )
            # Both parameters select parties.
            if {"index", "count"} <= set(spec.params):
                raise UsageError(f"threat {piece!r}: give index or count, not both")
            parts.append(spec)
        if not parts:
            raise UsageError("an empty threat; write a role, such as client, or several with +")
        if len({str(part) for part in parts}) < len(parts):
            raise UsageError(f"threat {text!r} names a party twice; client[count=2] is two clients")
        threat = cls(tuple(parts))
        background = [k for k in ("entries", "attributes") if getattr(threat, k)]
        background += ["labels"] * bool(threat.labels and threat.sensitive is not None)
        if threat.sensitive is not None:
            background.append("sensitive")
        if len(background) > 1:
            raise UsageError(f"threat {text!r}: give {' or '.join(background)}, not both")
        if roles is not None:
            threat.principals(roles)
        for key in _WORDS:
            threat._word(key)
        return threat

    @property
    def queries(self) -> int:
        """Number of rows that the principals may query from an inference endpoint."""
        return sum(q for p in self.parts if isinstance(q := p.params.get("queries", 0), int))

    @property
    def answers(self) -> str:
        """Kind of the endpoint's answers (`fedtrees.core.endpoint.ANSWERS`)."""
        return self._word("answers")

    @property
    def records(self) -> str:
        """Source of the victims' columns of a query (`fedtrees.core.endpoint.RECORDS`)."""
        return self._word("records")

    def _word(self, key: str) -> str:
        """Return the value of a parameter of the endpoint, on which all parts must agree."""
        default = _WORDS[key][0]
        asking = [p for p in self.parts if "queries" in p.params]
        values = {str(p.params.get(key, default)) for p in asking} or {default}
        if len(values) > 1:
            raise UsageError(
                f"threat {self}: {key}={' and '.join(sorted(values))} for one endpoint; give the "
                "same value to all roles"
            )
        return values.pop()

    @property
    def labels(self) -> int:
        """Number of training rows whose labels the principals know as background knowledge."""
        return sum(n for p in self.parts if isinstance(n := p.params.get("labels", 0), int))

    @property
    def entries(self) -> int:
        """Number of values of the victims' rows that the principals know."""
        return sum(n for p in self.parts if isinstance(n := p.params.get("entries", 0), int))

    @property
    def attributes(self) -> int:
        """Number of attributes of all rows of the victims that the principals know."""
        return sum(n for p in self.parts if isinstance(n := p.params.get("attributes", 0), int))

    @property
    def sensitive(self) -> int | None:
        """The only attribute of the victims' rows that the principals do not know.

        None if the threat does not declare it.
        """
        attributes = [n for p in self.parts if isinstance(n := p.params.get("sensitive"), int)]
        return attributes[0] if attributes else None

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles of the principals, each of them once."""
        return tuple(dict.fromkeys(role_of(part) for part in self.parts))

    @property
    def adversary(self) -> str:
        """Roles of the principals, with their behaviours."""
        return "+".join(dict.fromkeys(part.name for part in self.parts))

    def behaviours(self, roles: Mapping[str, str]) -> dict[str, str]:
        """Return the behaviours of the dishonest principals.

        Parameters
        ----------
        roles : mapping of str to str
            Role of every party by name.

        Returns
        -------
        dict of str to str
            Registered name of the behaviour by name of the party.
        """
        cheating = [p for p in self.parts if ":" in p.name]
        return {name: p.name.partition(":")[2] for p in cheating for name in _pick(p, roles)}

    @property
    def access(self) -> str:
        """Access of the principals: ``messages`` or ``model``, and their background knowledge."""
        words = ["model" if self.adversary == PUBLIC else "messages"]
        words += [k for k in ("queries", "labels", "entries", "attributes") if getattr(self, k)]
        several = len(self.parts) > 1 or self.parts[0].params.get("count", 1) != 1
        words += ["sensitive"] if self.sensitive is not None else []
        return "+".join([*words, "collusion"] if several else words)

    def principals(self, roles: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of the principals.

        Parameters
        ----------
        roles : mapping of str to str
            Role of every party by name.

        Returns
        -------
        tuple of str
            Names in the order of the parts, each once.

        Raises
        ------
        UsageError
            If the protocol does not have this role, or not enough parties.
        """
        names = [name for spec in self.parts for name in _pick(spec, roles)]
        return tuple(dict.fromkeys(names))

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def role_of(part: Spec) -> str:
    """Return the role that a part of a threat names, without its behaviour.

    Parameters
    ----------
    part : Spec
        For example ``server:isolating``.

    Returns
    -------
    str
        For example ``server``.
    """
    return part.name.partition(":")[0]


def _pick(spec: Spec, roles: Mapping[str, str]) -> list[str]:
    """Return the names of the parties that a part of a threat selects."""
    names = [name for name, role in roles.items() if role == role_of(spec)]
    available = dict.fromkeys(roles.values())
    if not names:
        hint = did_you_mean(spec.name, available) if closest(spec.name, available) else ""
        raise UsageError(
            f"unknown threat {spec.name!r}{hint}: the roles of this protocol are "
            f"{', '.join(available)}"
        )
    index, count = spec.params.get("index"), spec.params.get("count")
    if len(names) == 1 and (index, count) != (None, None):
        raise UsageError(f"threat {spec}: there is one {spec.name}, give neither index nor count")
    if isinstance(index, int):
        if index >= len(names):
            raise UsageError(f"threat {spec}: there are only {len(names)} of them (0 is the first)")
        return [names[index]]
    n_selected = count if isinstance(count, int) else 1
    if n_selected > len(names):
        raise UsageError(f"threat {spec}: there are only {len(names)} of them")
    return names[-n_selected:]
