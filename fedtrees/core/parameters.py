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
    """Return a field of a dataclass whose value `check_parameters` checks with a function.

    The other functions of this module call it with the checks of `fedtrees.core.errors`.

    Parameters
    ----------
    check : callable
        ``check(name, value)`` raises an error if the value is not permitted, and returns nothing
        otherwise.
    default : object, optional
        Value of a parameter that the user does not give. A field without default is required. If
        the default is None, None is always permitted.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from fedtrees.core.errors import UsageError
    >>> def check_even(name, value):
    ...     if value % 2:
    ...         raise UsageError(f"{name}={value}: give an even number")
    >>> @dataclass
    ... class Pairs:
    ...     parties: int = checked(check_even, default=2)
    >>> check_parameters(Pairs(parties=3))
    Traceback (most recent call last):
    fedtrees.core.errors.UsageError: parties=3: give an even number
    """
    return field(default=default, metadata={_CHECK: check})


def positive(default: Any = MISSING) -> Any:
    """Return a field for a finite number above 0, such as an epsilon or the scale of noise.

    Parameters
    ----------
    default : float or None, optional
        Value of a parameter that the user does not give. A field without default is required.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.
    """
    return checked(check_positive, default)


def share(default: Any = MISSING) -> Any:
    """Return a field for a number strictly between 0 and 1, such as a delta or a quantile.

    Parameters
    ----------
    default : float or None, optional
        Value of a parameter that the user does not give. A field without default is required.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.
    """
    return checked(check_share, default)


def whole(smallest: int, largest: int | None = None, default: Any = MISSING) -> Any:
    """Return a field for an integer in a range, such as a number of trees or of rows.

    Parameters
    ----------
    smallest : int
        Smallest permitted value.
    largest : int, optional
        Largest permitted value. By default, there is no upper bound.
    default : int or None, optional
        Value of a parameter that the user does not give. A field without default is required.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.
    """
    return checked(partial(check_whole, smallest=smallest, largest=largest), default)


def nonnegative(default: Any = MISSING) -> Any:
    """Return a field for a finite number of 0 or more, such as a regularisation.

    Parameters
    ----------
    default : float or None, optional
        Value of a parameter that the user does not give. A field without default is required.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.
    """
    return checked(check_nonnegative, default)


def fraction(default: Any = MISSING) -> Any:
    """Return a field for a number above 0 and at most 1, such as a sampling rate.

    Parameters
    ----------
    default : float or None, optional
        Value of a parameter that the user does not give. A field without default is required.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.
    """
    return checked(check_fraction, default)


def flag(default: Any = MISSING) -> Any:
    """Return a field for a boolean. The command line accepts ``true`` and ``false``.

    Parameters
    ----------
    default : bool or None, optional
        Value of a parameter that the user does not give. A field without default is required.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.
    """
    return checked(check_flag, default)


def one_of(allowed: Iterable[str], default: Any = MISSING) -> Any:
    """Return a field for one of several names, such as the name of an objective.

    Parameters
    ----------
    allowed : iterable of str
        The permitted names. If a user gives another one, the error suggests a similar name of them.
    default : str or None, optional
        Value of a parameter that the user does not give. A field without default is required.

    Returns
    -------
    dataclasses.Field
        Value of the class attribute that declares the parameter.
    """
    return checked(partial(check_known, allowed=tuple(allowed)), default)


def check_parameters(instance: Any) -> None:
    """Check the parameters of a dataclass that are declared with a function of this module.

    Protocols and defenses call it when they are created.

    Parameters
    ----------
    instance : dataclass object
        The object with the values to check. Fields that were declared otherwise are not checked.

    Raises
    ------
    UsageError
        If a value is not permitted. The message contains the parameter, the value and the rule.

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
