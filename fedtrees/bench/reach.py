"""What a party leads to in memory: in one process, too, nobody holds what another one holds."""

import gc
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fedtrees.core.local_data import LocalData
from fedtrees.core.network import LocalNetwork
from fedtrees.core.party import acting

_LEAST = 20  # elements of what is nobody else's by chance


def reachable(start: object) -> Iterator[object]:
    """Yield every object that one object leads to, itself first; not through code's globals."""
    seen, waiting = {id(start)}, [start]
    while waiting:
        thing = waiting.pop()
        yield thing
        if isinstance(thing, FunctionType):
            found: list[Any] = [thing.__closure__, thing.__defaults__, thing.__kwdefaults__]
        elif isinstance(thing, (type, ModuleType, BuiltinFunctionType)):
            continue
        else:
            found = gc.get_referents(thing)
        for other in found:
            if id(other) not in seen:
                seen.add(id(other))
                waiting.append(other)


def others_rows(net: LocalNetwork, local_data: Mapping[str, LocalData]) -> list[str]:
    """Return who leads to whose columns or labels, a text each; what a message told aside.

    A class that parties share, or a list that they were all given, is such a way.
    """
    whole = {name: _arrays(held) for name, held in local_data.items()}
    found = []
    for name in net.names:
        party = net.party(name)
        with acting(party):
            own = set(whole.get(name, {}))
            arrays = [x for x in _led_to(party) if x.size >= _LEAST]
        keys = {_key(x) for x in arrays} - own
        for other, theirs in whole.items():
            if other != name and (what := sorted({theirs[k] for k in keys & theirs.keys()})):
                found.append(f"{name} leads to the {' and '.join(what)} of {other}")
    return found


def _led_to(party: object) -> Iterator[np.ndarray[Any, Any]]:
    """Yield arrays that a party leads to, by its class as well."""
    for kind in type(party).__mro__:
        if kind.__module__.partition(".")[0] != "builtins":
            for value in vars(kind).values():
                if not isinstance(value, (FunctionType, type)):
                    yield from (x for x in reachable(value) if isinstance(x, np.ndarray))
    yield from (x for x in reachable(party) if isinstance(x, np.ndarray))


def _arrays(held: LocalData) -> dict[tuple[Any, ...], str]:
    found = {_key(held.X): "columns"}
    if held.y is not None:
        found[_key(held.y)] = "labels"
    return found


def _key(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    if array.dtype.kind not in "iuf":
        return (array.dtype.str, array.shape)
    return (array.dtype.str, array.shape, hash(np.ascontiguousarray(array).tobytes()))
