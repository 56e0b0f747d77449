"""Threats: which parties are curious, together, and what they know besides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedtrees.core.errors import UsageError, did_you_mean
from fedtrees.core.specs import Spec, parse_grid, split_outside

_ROLES = ("client", "server")


@dataclass(frozen=True)
class Threat:
    """Honest-but-curious principals who share what they saw.

    Written as roles joined by ``+``: ``client`` (the last one), ``client[index=0]``,
    ``client[count=2]`` (the last two collude), ``server``, ``server+client``.

    Attributes
    ----------
    parts : tuple of Spec
        The roles with their parameters.

    Notes
    -----
    Declared knowledge, always: the schema with public ranges, the number of rows N, the
    protocol and its parameters, the defense and its parameters (Kerckhoffs 1883).
    """

    parts: tuple[Spec, ...]

    @classmethod
    def parse(cls, text: str) -> Threat:
        """Read a threat as written on the command line."""
        parts = []
        for piece in split_outside(text, "+"):
            grid = parse_grid(piece)
            if len(grid) != 1:
                raise UsageError(f"threat {piece!r} names several; give --threat once for each")
            spec = grid[0]
            if spec.name not in _ROLES:
                raise UsageError(f"unknown threat {spec.name!r}{did_you_mean(spec.name, _ROLES)}")
            allowed = ("index", "count") if spec.name == "client" else ()
            for key, value in spec.params.items():
                if key not in allowed:
                    raise UsageError(f"threat {spec.name!r} has no parameter {key!r}")
                if type(value) is not int or value < (1 if key == "count" else 0):
                    raise UsageError(f"threat {piece!r}: {key}={value} is not a valid number")
            if len(spec.params) > 1:
                raise UsageError(f"threat {piece!r}: give index or count, not both")
            parts.append(spec)
        if not parts:
            raise UsageError("an empty threat; write client, server or server+client")
        return cls(tuple(parts))

    def principals(self, roles: Mapping[str, str]) -> tuple[str, ...]:
        """Return the names of the curious parties, given every party's role.

        Raises
        ------
        UsageError
            If there are fewer parties than the threat names, or nobody is left to attack.
        """
        found: list[str] = []
        for spec in self.parts:
            names = [n for n, role in roles.items() if role == spec.name]
            if spec.name == "client" and names:
                names = _pick(names, spec)
            found += names
        clients = [n for n, role in roles.items() if role == "client"]
        if not found:
            raise UsageError(f"threat {self}: this protocol has no such party; it has {roles}")
        if set(clients) <= set(found):
            raise UsageError(
                f"threat {self}: all {len(clients)} clients collude; no victim is left"
            )
        return tuple(dict.fromkeys(found))

    def __str__(self) -> str:
        return "+".join(map(str, self.parts))


def _pick(names: list[str], spec: Spec) -> list[str]:
    index, count = spec.params.get("index"), spec.params.get("count", 1)
    assert isinstance(count, int)
    if isinstance(index, int):
        if index >= len(names):
            raise UsageError(f"threat {spec}: there are only {len(names)} clients (0 is the first)")
        return [names[index]]
    return names[-count:]
