"""Validate the replies of an attack's process, where the bench receives them.

The process runs code of plug-ins, so that every value in its replies may be forged. These functions
create plain values of the expected types, with bounded numbers and lengths, or raise
`ProtocolError`.
"""

import keyword
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedtrees.core import errors
from fedtrees.core.errors import FedtreesError, ProtocolError
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import PLUGIN

#: Largest number of entries of a list, of characters of a name, and of characters of a text.
MOST_ENTRIES, MOST_NAME, MOST_TEXT = 1000, 200, 20_000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")  # as in a specification on the command line
_PLAIN = (bool, int, float, str, type(None))


class AttackError(FedtreesError):
    """An attack raised an error that is not defined by fedtrees.

    Attributes
    ----------
    traceback : str
        Traceback of the error.
    """

    traceback = ""


@dataclass(frozen=True)
class AttackFacts:
    """Name, signature and attributes of an attack whose code is only in the attacks' process.

    Attributes
    ----------
    parameters : tuple of (str, bool, value)
        Name of each parameter, whether it has a default, and the default.
    gives : str
        Type of claims, in the notation of `fedtrees.core.wire.type_name`.
    claims : tuple of str
        Types of claims, in the same notation.

    Raises
    ------
    ProtocolError
        If a value has another type, or cannot be a name.
    """

    name: str
    qualname: str
    module: str
    file: str
    doc: str
    parameters: tuple[tuple[str, bool, Any], ...]
    blind: bool
    comparison: bool
    candidates: bool
    most_rows: int | None
    gives: str
    claims: tuple[str, ...]

    def __post_init__(self) -> None:
        _require(_NAME.fullmatch(_text(self.name)), "name", self.name)
        for part in (_text(self.module), _text(self.qualname).replace("<locals>.", "")):
            _require(_is_dotted(part), "name of a class", part)
        is_builtin = self.module.partition(".")[0] == "fedtrees" and not self.module.startswith(
            PLUGIN
        )
        _require(not is_builtin, "module outside of fedtrees", self.module)
        _require(self.file == "" or _text(self.file).endswith(".py"), "Python file", self.file)
        _text(self.doc, MOST_TEXT)
        _require(isinstance(self.parameters, tuple), "tuple of parameters", self.parameters)
        names = [_parameter(parameter) for parameter in self.parameters]
        _require(len(set(names)) == len(names) <= MOST_ENTRIES, "parameters with own names", names)
        for mark in (self.blind, self.comparison, self.candidates):
            _require(isinstance(mark, bool), "mark", mark)
        rows = self.most_rows
        _require(rows is None or (type(rows) is int and rows > 0), "number of rows", rows)
        texts(self.claims)
        _text(self.gives)


def facts_of_reply(value: Any) -> AttackFacts:
    """Return the facts of one attack. Raises `ProtocolError` if the value is not valid."""
    expected_keys = set(AttackFacts.__dataclass_fields__)
    _require(
        isinstance(value, dict) and set(value) == expected_keys, "description of an attack", value
    )
    return AttackFacts(**value)


def texts(value: Any) -> tuple[str, ...]:
    """Return a tuple of short texts. Raises `ProtocolError` if the value is not valid."""
    _require(isinstance(value, tuple) and len(value) <= MOST_ENTRIES, "list of texts", value)
    return tuple(_text(entry, MOST_TEXT) for entry in value)


def seconds(value: Any) -> float:
    """Return a duration in seconds. Raises `ProtocolError` if the value is not valid."""
    fits = type(value) is float and math.isfinite(value) and value >= 0
    _require(fits, "number of seconds", value)
    return float(value)


def reason(value: Any) -> Reason:
    """Return a reason from its code and arguments. Raises `ProtocolError` if they are not valid."""
    try:
        code, args = value
        if all(isinstance(arg, (str, int, float)) for arg in args.values()):
            texts(tuple(arg for arg in args.values() if isinstance(arg, str)))
            return Reason(_text(code), **args)
    except (AttributeError, TypeError, ValueError):
        pass
    raise ProtocolError(f"an attack gave {_short(value)} for a reason")


def error(reply: Mapping[str, Any]) -> FedtreesError:
    """Return the error that an attack raised: one that fedtrees defines, or an `AttackError`."""
    kind = getattr(errors, str(reply["failed"])[:MOST_NAME], None)
    text = str(reply.get("text", ""))[:MOST_TEXT]
    if isinstance(kind, type) and issubclass(kind, FedtreesError):
        try:
            return kind(text)
        except TypeError:  # the constructor of this error needs more than a text
            return ProtocolError(text)
    failed = AttackError(text)
    failed.traceback = str(reply.get("traceback", ""))[:MOST_TEXT]
    return failed


def _parameter(value: Any) -> str:
    """Return the name of a parameter, after a check of its description."""
    _require(isinstance(value, tuple) and len(value) == 3, "parameter", value)
    name, has_default, default = value
    _require(_text(name).isidentifier() and not keyword.iskeyword(name), "parameter name", name)
    _require(isinstance(has_default, bool), "mark of a default", has_default)
    _require(isinstance(default, _PLAIN), "default", default)
    return str(name)


def _is_dotted(name: str) -> bool:
    """Return whether a text is a dotted name."""
    return all(part.isidentifier() for part in name.split("."))


def _text(value: Any, max_length: int = MOST_NAME) -> str:
    """Return a text, after a check of its length."""
    fits = isinstance(value, str) and len(value) <= max_length and "\0" not in value
    _require(fits, f"text of at most {max_length} characters", value)
    return str(value)


def _require(fits: Any, expected: str, value: Any) -> None:
    """Raise `ProtocolError` unless a value fits."""
    if not fits:
        raise ProtocolError(
            f"the process of attacks answered with {_short(value)} for a {expected}: a plug-in "
            "changed its answer, or is of another release"
        )


def _short(value: Any) -> str:
    """Return the beginning of a value's representation, in ASCII."""
    return ascii(value)[:200]
