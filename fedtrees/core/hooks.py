"""Call the hooks of a defense, and explain errors to the author of the defense.

An error names the line of the defense, the field of the message, the unit of its numbers and a
remedy. Without this check, a field of another dtype would fail later, at the party that adds it.
"""

import inspect
import sys
import traceback
from types import TracebackType

import numpy as np

from fedtrees.core.defense import Context, Defense
from fedtrees.core.errors import FedtreesError, ProtocolError
from fedtrees.core.messages import Message, names_of


def transform_message(part: Defense, message: Message, ctx: Context) -> Message:
    """Return the message that a defense sends in place of a message.

    Parameters
    ----------
    part : Defense
        The defense.
    message : Message
        The message of the party.
    ctx : Context
        Context of the sender.

    Raises
    ------
    ProtocolError
        If the hook raises an error of Python or numpy, returns no message, or returns fractions in
        a field of integers.
    """
    try:
        sent = part.transform_message(message, ctx)
    except FedtreesError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as err:
        where = _locate_error(part, err.__traceback__)
        text = f"{part.name!r} ({where}): {type(err).__name__}: {err}"
        integer_fields = _whole_fields(message) if isinstance(err, (TypeError, ValueError)) else []
        raise ProtocolError(
            "; ".join([text, *(_unit(message, f) for f in integer_fields[:1])])
        ) from err
    if not isinstance(sent, Message):
        raise ProtocolError(
            f"{part.name!r}: transform_message returned a {type(sent).__name__}; return the "
            "message to send"
        )
    if type(sent) is type(message):
        # Fractions would be truncated or refused at another party, far from the cause.
        for field in _whole_fields(message):
            value = getattr(sent, field)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f":
                raise ProtocolError(
                    f"{part.name!r} ({_locate_error(part)}) returned {value.dtype} numbers in "
                    f"{type(message).__name__}.{field}; {_unit(message, field)}"
                )
    return sent


def _whole_fields(message: Message) -> list[str]:
    """Return the array fields of a message that contain integers, sums (int64) first."""
    arrays = {name: getattr(message, name) for name in names_of(message)}
    names = [n for n, v in arrays.items() if isinstance(v, np.ndarray) and v.dtype.kind in "iu"]
    return sorted(names, key=lambda name: arrays[name].dtype.itemsize, reverse=True)


def _unit(message: Message, field: str) -> str:
    """Return the unit of an integer field, and how to add noise to it."""
    name, units = type(message).__name__, message.unit_of(field)[0]
    many = ", ".join(f"{int(unit):,}" for unit in np.ravel(units))
    return (
        f"{name}.{field} contains whole numbers ({getattr(message, field).dtype}), of which {many} "
        f"make 1.0 (message.unit_of({field!r})). To add noise of standard deviation sigma, write: "
        "from fedtrees.privacy.noise import Gaussian; law = "
        f"Gaussian(sigma).in_units_of(*message.unit_of({field!r})); return replace(message, "
        f"{field}=law.send(message.{field}, ctx.rng('noise'))); and let `channels` return "
        f"{{({name}, {field!r}): Gaussian(sigma)}}"
    )


def _locate_error(part: Defense, trace: TracebackType | None = None) -> str:
    """Return file and line of an error in a defense.

    Without an error, they are those of its `transform_message`.
    """
    module = sys.modules.get(type(part).__module__)
    file = getattr(module, "__file__", None) or "?"
    for frame in reversed(traceback.extract_tb(trace)):
        if frame.filename == file:
            return f"{file}, line {frame.lineno}: {frame.line}"
    code = getattr(inspect.unwrap(type(part).transform_message), "__code__", None)
    # A hook that the defense inherits is in another file.
    return f"{file}, line {code.co_firstlineno}" if code and code.co_filename == file else file
