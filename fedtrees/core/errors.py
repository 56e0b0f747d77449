"""Errors that name the value, the rule and the remedy, and the exit code each one ends with."""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

_NEURAL = "pip install 'fedtrees[neural]' --extra-index-url https://download.pytorch.org/whl/cpu"
#: How to get modules of extras.
INSTALL = {
    "torch": _NEURAL,
    "dp_accounting": _NEURAL,
    "opacus": _NEURAL,
    "interpret": "pip install 'fedtrees[ebm]'",
}
_LISTED = 60  # names in one line of a message, and characters of each


class FedtreesError(Exception):
    """Anything fedtrees can explain to its user in one line."""

    exit_code: ClassVar[int] = 1


class UsageError(FedtreesError, ValueError):
    """A name, option or parameter that cannot be used as given (exit code 2)."""

    exit_code = 2


class DataError(FedtreesError, ValueError):
    """A table, file or partition that cannot be used as given (exit code 5)."""

    exit_code = 5


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a table, and the option that mends it.

    `option, value`: Name of the option and what to give it; an empty value: leave it out.
    """

    text: str
    option: str = ""
    value: str = ""


class Problems(DataError):
    """Everything that is wrong with a table, told at once."""

    def __init__(self, where: str, found: Sequence[Problem]) -> None:
        self.where, self.found = where, tuple(found)
        said = "; also ".join(problem.text for problem in found)
        # a cell or a name as long as a page is no part of a line
        super().__init__(f"{where}: " + re.sub(r"(\S{60})\S{60,}", r"\1...", said))


class ProtocolError(FedtreesError):
    """A party did something its protocol does not allow (exit code 6)."""

    exit_code = 6


class PartyError(ProtocolError):
    """A party is lost, fails or takes no part: names it, and holds nothing of anybody's rows."""


class BeyondParametersError(ProtocolError):
    """A party was told, or asked for, what the public parameters rule out; it refuses to go on."""


class EquivocationError(ProtocolError):
    """A sum stays closed: not all who have a part in it were told the same."""


class LocalDataError(ProtocolError):
    """Private state of a party was read from outside that party's own methods."""


GlassWallError = LocalDataError  # until the next release


class UnguardedMessageError(ProtocolError):
    """A message reveals what a defense claims to protect, and the defense does not handle it."""


class StoreError(FedtreesError):
    """A run folder that cannot be read or written (exit code 7)."""

    exit_code = 7


def check_positive(name: str, value: Any) -> None:
    """Raise UsageError unless a parameter is a finite number above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 < value < math.inf):
        raise UsageError(f"{name} must be a finite number > 0; got {value!r}")


def check_share(name: str, value: Any) -> None:
    """Raise UsageError unless a parameter is a number between 0 and 1, neither of them."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 < value < 1):
        raise UsageError(f"{name} must be a number between 0 and 1; got {value!r}")


def check_whole(name: str, value: Any, least: int, most: int | None = None) -> None:
    """Raise UsageError unless a parameter is a whole number within bounds, both included."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f", {least} or more" if most is None else f" from {least} to {most}"
        raise UsageError(f"{name}={value!r}: give a whole number{bounds}")


def check_flag(name: str, value: Any) -> None:
    """Raise UsageError unless a parameter is true or false."""
    if not isinstance(value, bool):
        raise UsageError(f"{name}={value!r}: give true or false")


def check_margin(margin: float) -> None:
    """Raise UsageError unless it is an advantage that a defense may leave."""
    if not 0 < margin < 1:
        raise UsageError(f"margin {margin:g}: give an advantage above 0 and below 1, such as 0.05")


def check_known(what: str, value: Any, known: Iterable[str]) -> None:
    """Raise UsageError unless a parameter has one of the known values."""
    if value not in known:
        raise UsageError(f"unknown {what} {value!r}{did_you_mean(str(value), known)}")


def short(text: object, most: int = 60) -> str:
    """Return a text without its middle where it is long: a message is one line."""
    said = str(text)
    return said if len(said) <= most else f"{said[: most // 2]}...{said[-most // 4 :]}"


def closest(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most like one that is not; empty: none is."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)), "")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest known name, else the list of names."""
    names = sorted(known)
    close = closest(name, names)
    if close:
        return f"; did you mean {close!r}?"
    names = [n if len(n) <= _LISTED else f"{n[:_LISTED]}..." for n in names]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"; known: {', '.join(names[:_LISTED])}{more}" if names else "; none are registered"
