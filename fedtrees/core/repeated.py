"""Computations that attacks repeat, and that the process which starts the attacks performs once.

A bench attacks the same victims under many defenses. Part of each attack depends on the rows that
the adversary knows in advance, and not on most messages that it received. Examples are the choice
of the blind guess that an attack starts from, and the reference models of membership inference. A
function that is marked with `computed_once` is
therefore computed by the process of the bench, which caches the results. The key of the cache is a
digest of the function's name and of all its arguments, including the state of the random generator,
so that results are equal bit for bit to those of a computation in the attack's own process.

The process of an attack sends arguments and never results. An attack can therefore not change what
another attack receives.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import numpy as np

from fedtrees.core.errors import ProtocolError
from fedtrees.core.schema import Table
from fedtrees.core.wire import pack

P = ParamSpec("P")
T = TypeVar("T")
#: Number of results that are kept. A result can have several megabytes.
MOST_KEPT = 24
# Modules whose functions may be computed for an attack.
_MODULES = ("fedtrees.blind_baselines.", "fedtrees.attacks.membership.")
_MARK = "__computed_once__"


@dataclass
class Elsewhere:
    """How the process of an attack has marked functions computed by the bench.

    Attributes
    ----------
    ask : callable or None
        Sends a request and returns the reply. None: marked functions are computed in this process.
    cpu_seconds : float
        CPU seconds that the requested computations take, whether or not they were cached.
    """

    ask: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    cpu_seconds: float = 0.0


elsewhere = Elsewhere()


def computed_once(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function as one that the bench computes.

    The function has to be deterministic given its arguments. Its arguments are positional. They and
    its result have to be values that `fedtrees.core.wire.pack` accepts. The last argument may also
    be a random generator.
    """

    @wraps(function)
    def compute_or_ask(*arguments: P.args, **named: P.kwargs) -> T:
        *values, last = arguments
        rng = last if isinstance(last, np.random.Generator) else None
        is_known = rng is None or isinstance(rng.bit_generator, np.random.PCG64)
        if elsewhere.ask is None or named or not is_known:
            return function(*arguments, **named)
        name = f"{function.__module__}:{function.__qualname__}"
        if rng is None:
            values.append(last)
        state = None if rng is None else dict(rng.bit_generator.state)
        reply = elsewhere.ask({"compute": name, "arguments": tuple(values), "state": state})
        if rng is not None:
            rng.bit_generator.state = reply["state"]
        elsewhere.cpu_seconds += reply["cpu"]
        value: T = reply["value"]
        return value

    setattr(compute_or_ask, _MARK, function)
    return compute_or_ask


@dataclass
class Computed:
    """Results of marked functions, computed here for attacks that ask for them."""

    results: OrderedDict[bytes, dict[str, Any]] = field(default_factory=OrderedDict)

    def reply(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the reply to a request of `computed_once`.

        Raises
        ------
        ProtocolError
            If the request does not name a marked function, or its arguments are malformed.
        """
        digest = hashlib.blake2b(digest_size=32)
        for chunk in pack(dict(request)):
            digest.update(chunk)
        key = digest.digest()
        if key not in self.results:
            self.results[key] = _compute(request)
            while len(self.results) > MOST_KEPT:
                self.results.popitem(last=False)
        self.results.move_to_end(key)
        return self.results[key]


def _compute(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        module, _, name = request["compute"].partition(":")
        marked = getattr(import_module(module), name) if module.startswith(_MODULES) else None
        function, state = getattr(marked, _MARK), request["state"]
        arguments = [_with_own_arrays(value) for value in request["arguments"]]
        if state is not None:
            arguments.append(np.random.Generator(np.random.PCG64()))
            arguments[-1].bit_generator.state = state
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as err:
        raise ProtocolError(f"an attack asked for {str(request)[:200]}: {err}") from err
    cpu = time.process_time()
    value = function(*arguments)
    if state is not None:
        state = dict(arguments[-1].bit_generator.state)
    return {"value": value, "state": state, "cpu": time.process_time() - cpu}


def _with_own_arrays(value: Any) -> Any:
    """Return the value with copies of its arrays.

    Arrays of messages are read-only, for which numba would compile another variant of a kernel.
    """
    if isinstance(value, Table):
        return Table(value.X.copy(), value.y.copy(), value.weight)
    if isinstance(value, tuple | list):
        return tuple(map(_with_own_arrays, value))
    return value.copy() if isinstance(value, np.ndarray) else value
