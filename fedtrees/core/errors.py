"""Errors that name the value, the rule and the remedy, with the exit code of each class.

The module also contains the checks that raise these errors, and functions that write counts and
lists in messages to the user.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import get_annotations
from typing import Any, ClassVar


def many(n: int, word: str, plural: str = "") -> str:
    """Write a number with its noun. `plural` is the plural if it is not formed with s."""
    return f"{n:,} {word if n == 1 else plural or word + 's'}"


def listed(texts: Sequence[str]) -> str:
    """Write several texts as a list: ``a``, ``a and b``, ``a, b and c``."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


_NEURAL = "pip install 'fedtrees[neural]' --extra-index-url https://download.pytorch.org/whl/cpu"
#: Command that installs an optional dependency, by module.
INSTALL = {
    "torch": _NEURAL,
    "dp_accounting": _NEURAL,
    "opacus": _NEURAL,
    "interpret": "pip install 'fedtrees[ebm]'",
}
#: Prefix of the module names of plug-in files.
PLUGIN = "fedtrees_plugin_"
_LISTED = 60  # limit of names in one line of a message, and of characters of each name


class FedtreesError(Exception):
    """Base class of all errors that fedtrees explains to its user in one line.

    Examples
    --------
    >>> from fedtrees import FedtreesError, UsageError
    >>> issubclass(UsageError, FedtreesError)
    True
    """

    exit_code: ClassVar[int] = 1


def describe_error(err: BaseException) -> str:
    """Return an error of Python in one line, with the line of the plug-in file that raised it.

    Parameters
    ----------
    err : BaseException
        The error. An error of fedtrees explains itself, so that only its message is returned.

    Returns
    -------
    text : str
        For example ``KeyError: 'leaf' (mine.py, line 12: return counts["leaf"])``. The place is
        missing if no code of a plug-in file took part.
    """
    if isinstance(err, FedtreesError):
        return str(err)
    text = f"{type(err).__name__}: {err}"
    modules = [m for name, m in sys.modules.items() if name.startswith(PLUGIN)]
    files = {getattr(m, "__file__", None) for m in modules}
    for frame in reversed(traceback.extract_tb(err.__traceback__)):
        if frame.filename in files:
            place = f"{os.path.basename(frame.filename)}, line {frame.lineno}: {frame.line}"
            return f"{text} ({place})"
    return text


class UsageError(FedtreesError, ValueError):
    """A name, option or parameter is invalid (exit code 2).

    Examples
    --------
    >>> from fedtrees import FederatedGBDTClassifier, UsageError
    >>> try:
    ...     FederatedGBDTClassifier(protocol="fedtree-hits").fit([[0.0], [1.0]], [0, 1])
    ... except UsageError as error:
    ...     print(error)
    unknown protocol 'fedtree-hits'; did you mean 'fedtree-hist'?
    """

    exit_code = 2


class DataError(FedtreesError, ValueError):
    """A table, file or partition is invalid (exit code 5).

    Examples
    --------
    >>> from fedtrees import DataError, FederatedGBDTClassifier
    >>> try:
    ...     FederatedGBDTClassifier().fit([[0.0], [1.0]], [1, 1])
    ... except DataError as error:
    ...     print(error)
    the rows are of 1 class (1); a classifier needs two classes or more
    """

    exit_code = 5


@dataclass(frozen=True)
class Problem:
    """One problem of a table, and the option that solves it.

    Attributes
    ----------
    text : str
        Description of the problem.
    option, value : str
        Name of the option and its value. Without a value, the option is to be left out.
    """

    text: str
    option: str = ""
    value: str = ""


class Problems(DataError):
    """All problems of a table, reported together."""

    def __init__(self, where: str, problems: Sequence[Problem]) -> None:
        self.where, self.problems = where, tuple(problems)
        problem_text = "; also ".join(problem.text for problem in problems)
        # Shorten long cells and names, so that the message stays one line.
        super().__init__(f"{where}: " + re.sub(r"(\S{60})\S{60,}", r"\1...", problem_text))


class ProtocolError(FedtreesError):
    """A party violated its protocol (exit code 6).

    Examples
    --------
    >>> import numpy as np
    >>> from fedtrees import Membership, ProtocolError
    >>> try:
    ...     Membership("loss", np.array([np.nan]))
    ... except ProtocolError as error:
    ...     print(error)
    Membership.score has infinite or missing values; leave them out
    """

    exit_code = 6


class PartyError(ProtocolError):
    """A party is lost, fails or does not take part.

    The text names it and contains no private data.
    """


class BeyondParametersError(ProtocolError):
    """A party refuses a message or request that contradicts the public parameters."""


class EquivocationError(ProtocolError):
    """A sum is not opened, because its contributors received different messages."""


class LocalDataError(ProtocolError):
    """Private state of a party was read outside the methods of this party."""


class UnguardedMessageError(ProtocolError):
    """A message reveals information that a defense claims to protect but does not handle."""


class StoreError(FedtreesError):
    """A run folder cannot be read or written (exit code 7).

    Examples
    --------
    >>> from fedtrees import Run, StoreError
    >>> try:
    ...     Run("absent").frame
    ... except StoreError:
    ...     print("there is no run in this folder")
    there is no run in this folder
    """

    exit_code = 7


class RenamedError(UsageError, AttributeError):
    """A plug-in uses the former name of an attribute."""


def refuse_old_names(cls: type, kind: str, renamed: Mapping[str, str]) -> None:
    """Raise `RenamedError` if a class defines an attribute or method by its former name.

    Fields of a dataclass are parameters of the plug-in, whose names are free.

    Parameters
    ----------
    cls : type
        The class of a plug-in.
    kind : str
        Kind of the plug-in, for the error message.
    renamed : mapping of str to str
        New name by former name.
    """
    annotations = get_annotations(cls)
    for name in renamed.keys() & cls.__dict__.keys():
        if name not in annotations or "ClassVar" in str(annotations[name]):
            raise RenamedError(
                f"{kind} {cls.__name__} defines {name!r}, which is now {renamed[name]}; rename it"
            )


def missing_attribute(owner: object, name: str, renamed: Mapping[str, str]) -> AttributeError:
    """Return the error of an attribute that does not exist, with its new name if it has one."""
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return (
        RenamedError(f"{text}; it is now {renamed[name]}")
        if name in renamed
        else (AttributeError(text))
    )


def check_positive(name: str, value: Any) -> None:
    """Raise `UsageError` unless a parameter is a finite number above 0."""
    if not is_finite_number(value) or value <= 0:
        raise UsageError(f"{name} must be a finite number > 0; got {value!r}")


def is_finite_number(value: Any) -> bool:
    """Return whether a value is a finite number and no boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_nonnegative(name: str, value: Any) -> None:
    """Raise `UsageError` unless a parameter is a finite number, 0 or more."""
    if not is_finite_number(value) or value < 0:
        raise UsageError(f"{name}={value!r}: give a finite number, 0 or more")


def check_fraction(name: str, value: Any) -> None:
    """Raise `UsageError` unless a parameter is a number in (0, 1]."""
    if not is_finite_number(value) or not 0 < value <= 1:
        raise UsageError(f"{name}={value!r}: give a number in (0, 1]")


def check_share(name: str, value: Any) -> None:
    """Raise `UsageError` unless a parameter is a number strictly between 0 and 1."""
    if not is_finite_number(value) or not 0 < value < 1:
        raise UsageError(f"{name} must be a number between 0 and 1; got {value!r}")


def check_whole(name: str, value: Any, smallest: int, largest: int | None = None) -> None:
    """Raise `UsageError` unless a parameter is an integer within bounds.

    Parameters
    ----------
    name : str
        Name of the parameter.
    value : object
        Its value.
    smallest, largest : int
        Bounds, which are allowed values. None: no upper bound.
    """
    if type(value) is not int or value < smallest or (largest is not None and value > largest):
        bounds = f", {smallest} or more" if largest is None else f" from {smallest} to {largest}"
        raise UsageError(f"{name}={value!r}: give a whole number{bounds}")


def check_flag(name: str, value: Any) -> None:
    """Raise `UsageError` unless a parameter is a boolean."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: give true or false")


def check_margin(margin: float) -> None:
    """Raise `UsageError` unless a margin, the advantage that a defense may leave, is in (0, 1)."""
    if not 0 < margin < 1:
        raise UsageError(f"margin {margin:g}: give an advantage above 0 and below 1, such as 0.05")


def check_known(parameter: str, value: Any, allowed: Iterable[str]) -> None:
    """Raise `UsageError` unless a parameter has one of the known values.

    Parameters
    ----------
    parameter : str
        Name of the parameter.
    value : object
        Its value.
    allowed : iterable of str
        Allowed values.
    """
    if value not in allowed:
        raise UsageError(f"unknown {parameter} {value!r}{did_you_mean(str(value), allowed)}")


def short(text: object, max_length: int = 60) -> str:
    """Return a text whose middle is left out if it is longer than `max_length` characters."""
    full_text = str(text)
    return (
        full_text
        if len(full_text) <= max_length
        else f"{full_text[: max_length // 2]}...{full_text[-max_length // 4 :]}"
    )


def closest(name: str, known_names: Iterable[str]) -> str:
    """Return the known name that is most similar to an unknown one, empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(known_names), n=1, cutoff=0.5)), "")


def did_you_mean(name: str, known_names: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the most similar known name, else the list of names."""
    names = sorted(known_names)
    close = closest(name, names)
    if close:
        return f"; did you mean {close!r}?"
    names = [n if len(n) <= _LISTED else f"{n[:_LISTED]}..." for n in names]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"; known: {', '.join(names[:_LISTED])}{more}" if names else "; none are registered"
