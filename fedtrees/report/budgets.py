"""Sort the defenses of a run, and find the parameter over which each of them was swept."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from fedtrees.core.specs import Composed, Value, parse_one
from fedtrees.report.results import UNDEFENDED


@dataclass(frozen=True)
class Budget:
    """The swept parameter of one defense.

    Attributes
    ----------
    name : str
        Name of the parameter, for example "epsilon". "" if nothing was swept.
    value : float
        Value of the parameter, NaN if nothing was swept.
    rest : str
        The remaining parameters. Only points that agree in them are joined by a line.
    """

    name: str = ""
    value: float = math.nan
    rest: str = ""

    @property
    def known(self) -> bool:
        """Whether the defense was swept over a numeric parameter."""
        return not math.isnan(self.value)


def family(spec: str) -> str:
    """Return the names of the parts of a defense without their parameters."""
    return parse_one(spec).name


def parameters(defense: Composed) -> dict[str, Value]:
    """Return the parameters of a defense by ``part.name``, to distinguish equal names of parts."""
    return {f"{p.name}.{key}": value for p in defense.parts for key, value in p.params.items()}


def budgets(specs: Iterable[str]) -> dict[str, Budget]:
    """Find the swept parameter of each family of defenses, and return it by defense.

    It is a numeric parameter that differs within the family. If several differ, epsilon and xi have
    priority.
    """
    families: dict[str, dict[str, dict[str, Value]]] = {}
    for spec in specs:
        defense = parse_one(spec)
        families.setdefault(defense.name, {})[spec] = parameters(defense)
    out = {}
    for members in families.values():
        key = _find_swept(list(members.values()))
        for spec, own_parameters in members.items():
            rest = str(sorted((k, v) for k, v in own_parameters.items() if k != key))
            out[spec] = Budget(key.rsplit(".", 1)[-1], _number(own_parameters.get(key)), rest)
    return out


def _find_swept(members: list[dict[str, Value]]) -> str:
    """Return the key of the swept parameter, "" if no numeric parameter differs."""
    keys = sorted({k for m in members for k in m})
    varying = [
        key
        for key in keys
        if len({m.get(key) for m in members}) > 1
        and not any(math.isnan(_number(m.get(key))) for m in members)
    ]
    # False sorts before True, so that privacy parameters come first.
    varying.sort(key=lambda k: k.rsplit(".", 1)[-1] not in ("epsilon", "xi"))
    return varying[0] if varying else ""


def _number(value: Value) -> float:
    """Return a value as float, NaN if it is not a number. Booleans are not numbers."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number else math.nan  # type: ignore[arg-type]


def ordered(specs: Iterable[str]) -> list[str]:
    """Sort defenses: the undefended run first, then by name, with numbers in a name by value.

    For example, ``epsilon=8`` precedes ``epsilon=16``.
    """

    def key(text: str) -> tuple[bool, list[tuple[int, float, str]]]:
        # `re.split` with a group returns texts and numbers alternately, the numbers at odd indices.
        pieces = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
        return text != UNDEFENDED, [
            (0, float(p), "") if i % 2 else (1, 0.0, p) for i, p in enumerate(pieces)
        ]

    return sorted(specs, key=key)
