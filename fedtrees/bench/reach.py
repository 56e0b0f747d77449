"""Check that no party can reach the data of another party through references in memory.

The parties of a simulation share one process. The check follows all references from each party.
"""

import gc
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np

from fedtrees.core.local_data import LocalData
from fedtrees.core.network import LocalNetwork
from fedtrees.core.party import acting

_LEAST = 20  # smallest array whose contents identify a party


def reachable(start: object) -> Iterator[object]:
    """Yield every object that can be reached from an object, starting with the object.

    Global variables of functions are not followed.
    """
    # Objects are compared by identity, because equality can be expensive and can be redefined.
    seen, stack = {id(start)}, [start]
    while stack:
        current = stack.pop()
        yield current
        if isinstance(current, FunctionType):
            referents: list[Any] = [
                current.__closure__,
                current.__defaults__,
                current.__kwdefaults__,
            ]
        elif isinstance(current, (type, ModuleType, BuiltinFunctionType)):
            continue
        else:
            referents = gc.get_referents(current)
        for referent in referents:
            if id(referent) not in seen:
                seen.add(id(referent))
                stack.append(referent)


def others_rows(net: LocalNetwork, local_data: Mapping[str, LocalData]) -> list[str]:
    """Return a text for each party that can reach the columns or labels of another party.

    Possible ways are an attribute of a class that parties share, or a list that several parties
    received. Data in delivered messages are not considered.
    """
    arrays_of = {name: _arrays(part) for name, part in local_data.items()}
    texts = []
    for name in net.names:
        party = net.party(name)
        with acting(party):
            local_keys = set(arrays_of.get(name, {}))
            arrays = [x for x in _led_to(party) if x.size >= _LEAST]
        # Contents are compared instead of identities, so that a copy of the data is found, too.
        keys = {_key(x) for x in arrays} - local_keys
        for other, other_arrays in arrays_of.items():
            if other != name and (
                kinds := sorted({other_arrays[k] for k in keys & other_arrays.keys()})
            ):
                texts.append(f"{name} leads to the {' and '.join(kinds)} of {other}")
    return texts


def _led_to(party: object) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays that can be reached from a party or from the attributes of its class."""
    for kind in type(party).__mro__:
        if kind.__module__.partition(".")[0] != "builtins":
            for value in vars(kind).values():
                if not isinstance(value, (FunctionType, type)):
                    yield from (x for x in reachable(value) if isinstance(x, np.ndarray))
    yield from (x for x in reachable(party) if isinstance(x, np.ndarray))


def _arrays(held: LocalData) -> dict[tuple[Any, ...], str]:
    """Return the arrays of local data by key."""
    names = {_key(held.X): "columns"}
    if held.y is not None:
        names[_key(held.y)] = "labels"
    return names


def _key(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Return a key that is equal for arrays with the same contents."""
    if array.dtype.kind not in "iuf":
        return (array.dtype.str, array.shape)
    return (array.dtype.str, array.shape, hash(np.ascontiguousarray(array).tobytes()))
