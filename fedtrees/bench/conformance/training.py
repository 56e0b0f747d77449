"""What no training may leave or carry, of a protocol or under a defense."""

from collections.abc import Mapping, Sequence

from fedtrees.bench.conformance.findings import Finding
from fedtrees.bench.held_values import held_values
from fedtrees.core.local_data import LocalData
from fedtrees.core.messages import Message
from fedtrees.protocols.training import Training


def carries_nothing(
    name: str,
    training: Training,
    held: Mapping[str, LocalData],
    kinds: tuple[type[Message], ...] = (),
) -> Finding:
    """See that no message carries what somebody holds without saying so (`Message.verbatim`).

    Of a defense, those of its `kinds` are searched: it changes no others.
    """
    found = held_values(training.transcript, held, training.schema, kinds)
    return Finding(f"{name}no message carries held values unsaid", not found, "; ".join(found))


def leaves_nothing(name: str, left: Sequence[str]) -> Finding:
    """See that a training left nothing outside its messages, where an attack could find it."""
    what = "; ".join(dict.fromkeys(left))
    return Finding(f"{name}training leaves nothing but messages", not left, what)
