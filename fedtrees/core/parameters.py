"""Fields of dataclasses that declare the permitted values of a parameter.

A defense declares ``epsilon: float = positive()`` in place of a check in ``__post_init__``.
`check_parameters` checks all fields of an instance, in the order of their declaration, and raises
the errors of `fedtrees.core.errors`. A parameter whose default is None may also be None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, field, fields
from functools import partial
from typing import Any

from fedtrees.core.errors import (
    check_flag,
    check_fraction,
    check_known,
    check_nonnegative,
    check_positive,
    check_share,
    check_whole,
)

_CHECK = "check"


def checked(check: Callable[[str, Any], None], default: Any = MISSING) -> Any:
    """Return a field whose value passes ``check(name, value)``, required if it has no default."""
    return field(default=default, metadata={_CHECK: check})


def positive(default: Any = MISSING) -> Any:
    """Return a field for a finite number above 0."""
    return checked(check_positive, default)


def share(default: Any = MISSING) -> Any:
    """Return a field for a number strictly between 0 and 1."""
    return checked(check_share, default)


def whole(smallest: int, largest: int | None = None, default: Any = MISSING) -> Any:
    """Return a field for an integer from `smallest` to `largest`. None: no upper bound."""
    return checked(partial(check_whole, smallest=smallest, largest=largest), default)


def nonnegative(default: Any = MISSING) -> Any:
    """Return a field for a finite number, 0 or more."""
    return checked(check_nonnegative, default)


def fraction(default: Any = MISSING) -> Any:
    """Return a field for a number in (0, 1]."""
    return checked(check_fraction, default)


def flag(default: Any = MISSING) -> Any:
    """Return a field for a boolean."""
    return checked(check_flag, default)


def one_of(allowed: Iterable[str], default: Any = MISSING) -> Any:
    """Return a field for one of some names."""
    return checked(partial(check_known, allowed=tuple(allowed)), default)


def check_parameters(instance: Any) -> None:
    """Check the parameters of a dataclass that are declared with a function of this module.

    Raises
    ------
    UsageError
        If a value is not permitted. The message names the parameter, the value and the rule.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Noise:
    ...     scale: float = positive()
    ...     repeats: int = whole(1, default=1)
    >>> check_parameters(Noise(scale=2.0))
    >>> check_parameters(Noise(scale=2.0, repeats=0))
    Traceback (most recent call last):
    fedtrees.core.errors.UsageError: repeats=0: give a whole number, 1 or more
    """
    for item in fields(instance):
        declared, value = _declaration(type(instance), item.name), getattr(instance, item.name)
        if declared is not None and not (value is None and declared.default is None):
            declared.metadata[_CHECK](item.name, value)


def _declaration(kind: type, name: str) -> Field[Any] | None:
    """Return the field that declares the rule of a parameter.

    A subclass that replaces only the default of a parameter inherits the rule.
    """
    by_class = (vars(base).get("__dataclass_fields__", {}) for base in kind.__mro__)
    declared = (fields_of_class[name] for fields_of_class in by_class if name in fields_of_class)
    return next((item for item in declared if _CHECK in item.metadata), None)
