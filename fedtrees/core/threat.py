"""Threats: which parties are curious or cheat, together, and what they know besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedtrees.core.errors import UsageError, check_known, did_you_mean
from fedtrees.core.oracle import ANSWERS, RECORDS
from fedtrees.core.specs import Spec, parse_grid, split_outside
from fedtrees.core.transcript import PUBLIC

_LEAST = {"index": 0, "count": 1, "queries": 1, "labels": 1, "entries": 1, "attributes": 1,
          "sensitive": 0}  # fmt: skip
_WORDS = {"answers": ANSWERS, "records": RECORDS}
#: What may stand in the brackets of a threat.
PARAMETERS = (*_LEAST, *_WORDS)


@dataclass(frozen=True)
class Threat:
    """Principals who share what they saw, honest-but-curious unless a behaviour is named.

    Written as roles of the protocol joined by ``+``: ``client`` (the last one),
    ``client[index=0]``, ``client[count=2]`` (the last two collude), ``server``, ``server+client``,
    ``public`` (whoever holds the released model), ``passive``. ``queries=1000`` adds as many
    rows that an inference endpoint answers, ``answers=leaf-ids`` with what (`Oracle`), and
    ``records=held`` (``new``: of rows to predict) takes away the right to choose what others hold
    of a row. ``labels=20`` adds the labels of as many training rows, ``entries=6`` as many values
    that others hold of them, ``attributes=2`` as many attributes, a one-hot group is one, of all
    their rows; ``sensitive=0`` all of them but this one, counted from 0, with the labels.
    ``server:isolating`` cheats: it acts by that behaviour (`fedtrees.core.behaviour`).

    `parts`: The roles with their parameters.

    Notes
    -----
    Declared knowledge, always: the schema with public ranges and the names of all categories and
    classes (those of the whole table, held-out rows too), the number of rows N, the
    protocol and its parameters, the defense and its parameters (Kerckhoffs 1883).

    Principals without local rows also know rows of the same population that no party of the
    federation has: the held-out rows. Attacks receive them as `fedtrees.core.view.View.population`,
    and the population baseline is computed from the same rows. Attacks on membership do not receive
    them, because the non-members among their candidates are such rows.
    """

    parts: tuple[Spec, ...]

    @classmethod
    def parse(cls, text: str, roles: Mapping[str, str] | None = None) -> Threat:
        """Read a threat as written on the command line.

        `roles`: mapping of str to str, optional. Role of every party of the protocol by name: then
        its names and numbers are checked too.
        """
        parts = []
        for piece in split_outside(text, "+"):
            grid = parse_grid(piece)
            if len(grid) != 1:
                raise UsageError(f"threat {piece!r} names several; give --threat once for each")
            spec = grid[0]
            for key, value in spec.params.items():
                if key in _WORDS:
                    check_known(key, value, _WORDS[key])
                    if "queries" not in spec.params:
                        raise UsageError(
                            f"threat {piece!r}: {key}= is about what may be asked; give queries="
                        )
                    continue
                if key not in _LEAST:
                    known = {**_LEAST, **_WORDS}
                    raise UsageError(
                        f"threat {spec.name!r} has no parameter {key!r}{did_you_mean(key, known)}"
                    )
                if type(value) is not int or value < _LEAST[key]:
                    raise UsageError(
                        f"threat {piece!r}: {key}={value} is not a valid number; give a whole "
                        f"number, {_LEAST[key]} or more"
                    )
            if {"index", "count"} <= set(spec.params):
                raise UsageError(f"threat {piece!r}: give index or count, not both")
            parts.append(spec)
        if not parts:
            raise UsageError("an empty threat; write a role, such as client, or several with +")
        if len({str(part) for part in parts}) < len(parts):
            raise UsageError(f"threat {text!r} names a party twice; client[count=2] is two clients")
        threat = cls(tuple(parts))
        besides = [k for k in ("entries", "attributes") if getattr(threat, k)]
        besides += ["labels"] * bool(threat.labels and threat.sensitive is not None)
        if threat.sensitive is not None:
            besides.append("sensitive")
        if len(besides) > 1:
            raise UsageError(f"threat {text!r}: give {' or '.join(besides)}, not both")
        if roles is not None:
            threat.principals(roles)
        for key in _WORDS:
            threat._word(key)
        return threat

    @property
    def queries(self) -> int:
        """Rows that the principals may ask an inference endpoint for."""
        return sum(q for p in self.parts if isinstance(q := p.params.get("queries", 0), int))

    @property
    def answers(self) -> str:
        """What the endpoint answers (`fedtrees.core.oracle.ANSWERS`)."""
        return self._word("answers")

    @property
    def records(self) -> str:
        """Whose values stand in what is asked (`fedtrees.core.oracle.RECORDS`)."""
        return self._word("records")

    def _word(self, key: str) -> str:
        default = _WORDS[key][0]
        asking = [p for p in self.parts if "queries" in p.params]
        found = {str(p.params.get(key, default)) for p in asking} or {default}
        if len(found) > 1:
            raise UsageError(
                f"threat {self}: one endpoint, and {key}={' and '.join(sorted(found))}"
            )
        return found.pop()

    @property
    def labels(self) -> int:
        """Training rows whose labels the principals know besides."""
        return sum(n for p in self.parts if isinstance(n := p.params.get("labels", 0), int))

    @property
    def entries(self) -> int:
        """Values of others' rows that the principals know besides."""
        return sum(n for p in self.parts if isinstance(n := p.params.get("entries", 0), int))

    @property
    def attributes(self) -> int:
        """Attributes of all rows of others that the principals know besides."""
        return sum(n for p in self.parts if isinstance(n := p.params.get("attributes", 0), int))

    @property
    def sensitive(self) -> int | None:
        """The one attribute of others' rows that the principals do not know, None: not so."""
        given = [n for p in self.parts if isinstance(n := p.params.get("sensitive"), int)]
        return given[0] if given else None

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of the principals, each once."""
        return tuple(dict.fromkeys(role_of(part) for part in self.parts))

    @property
    def adversary(self) -> str:
        """The roles of the principals, with their behaviours."""
        return "+".join(dict.fromkeys(part.name for part in self.parts))

    def behaviours(self, roles: Mapping[str, str]) -> dict[str, str]:
        """Return the behaviours of the principals that cheat, by name."""
        cheating = [p for p in self.parts if ":" in p.name]
        return {name: p.name.partition(":")[2] for p in cheating for name in _pick(p, roles)}

    @property
    def access(self) -> str:
        """What the principals have: ``messages`` or the ``model``, and what is declared besides."""
        told = ["model" if self.adversary == PUBLIC else "messages"]
        told += [k for k in ("queries", "labels", "entries", "attributes") if getattr(self, k)]
        several = len(self.parts) > 1 or self.parts[0].params.get("count", 1) != 1
        told += ["sensitive"] if self.sensitive is not None else []
        return "+".join([*told, "collusion"] if several else told)

    def principals(self, roles: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of the principals, given every party's role.

        Raises `UsageError` if the protocol has no such role, or fewer such parties than the threat
        names.
        """
        found = [name for spec in self.parts for name in _pick(spec, roles)]
        return tuple(dict.fromkeys(found))

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def role_of(part: Spec) -> str:
    """Return the role that a part of a threat names, without its behaviour."""
    return part.name.partition(":")[0]


def _pick(spec: Spec, roles: Mapping[str, str]) -> list[str]:
    names = [name for name, role in roles.items() if role == role_of(spec)]
    known = dict.fromkeys(roles.values())
    if not names:
        raise UsageError(
            f"unknown threat {spec.name!r}{did_you_mean(spec.name, known)}: the roles of this "
            f"protocol are {', '.join(known)}"
        )
    index, count = spec.params.get("index"), spec.params.get("count")
    if len(names) == 1 and (index, count) != (None, None):
        raise UsageError(f"threat {spec}: there is one {spec.name}, give neither index nor count")
    if isinstance(index, int):
        if index >= len(names):
            raise UsageError(f"threat {spec}: there are only {len(names)} of them (0 is the first)")
        return [names[index]]
    wanted = count if isinstance(count, int) else 1
    if wanted > len(names):
        raise UsageError(f"threat {spec}: there are only {len(names)} of them")
    return names[-wanted:]
