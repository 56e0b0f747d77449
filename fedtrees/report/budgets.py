"""Order the defenses of a run and find the parameter each one was swept over."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from fedtrees.core.specs import Composed, Value, parse_one
from fedtrees.report.rows import UNDEFENDED


@dataclass(frozen=True)
class Budget:
    """The swept parameter of one defense."""

    name: str = ""  # its name, e.g. "epsilon"; "" where nothing was swept
    value: float = math.nan  # its value, NaN where nothing was swept
    rest: str = ""  # the other parameters; only points that agree in them are joined by a line

    @property
    def known(self) -> bool:
        """Whether the defense was swept over a numeric parameter."""
        return not math.isnan(self.value)


def family(spec: str) -> str:
    """Return the names of a defense without their parameters."""
    return parse_one(spec).name


def parameters(defense: Composed) -> dict[str, Value]:
    """Return the parameters of a defense, keyed ``part.name`` so that parts stay apart."""
    return {f"{p.name}.{key}": value for p in defense.parts for key, value in p.params.items()}


def budgets(specs: Iterable[str]) -> dict[str, Budget]:
    """Find, per family, the numeric parameter that varies; a privacy budget before others."""
    families: dict[str, dict[str, dict[str, Value]]] = {}
    for spec in specs:
        defense = parse_one(spec)
        families.setdefault(defense.name, {})[spec] = parameters(defense)
    out = {}
    for members in families.values():
        key = _swept(list(members.values()))
        for spec, mine in members.items():
            rest = str(sorted((k, v) for k, v in mine.items() if k != key))
            out[spec] = Budget(key.rsplit(".", 1)[-1], _number(mine.get(key)), rest)
    return out


def _swept(members: list[dict[str, Value]]) -> str:
    keys = sorted({k for m in members for k in m})
    varying = [
        key
        for key in keys
        if len({m.get(key) for m in members}) > 1
        and not any(math.isnan(_number(m.get(key))) for m in members)
    ]
    varying.sort(key=lambda k: k.rsplit(".", 1)[-1] not in ("epsilon", "xi"))
    return varying[0] if varying else ""


def _number(value: Value) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number else math.nan  # type: ignore[arg-type]


def ordered(specs: Iterable[str]) -> list[str]:
    """Undefended first, then by family; the numbers in a name count as numbers."""

    def key(text: str) -> tuple[bool, list[tuple[int, float, str]]]:
        pieces = re.split(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)", text)
        return text != UNDEFENDED, [
            (0, float(p), "") if i % 2 else (1, 0.0, p) for i, p in enumerate(pieces)
        ]

    return sorted(specs, key=key)
