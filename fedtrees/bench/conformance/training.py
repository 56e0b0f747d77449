"""Check that a training leaks nothing outside its messages and declares their contents."""

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
    """Check that no message contains local data without declaring it (`Message.verbatim`).

    For a defense, only the types `kinds` of messages are searched, because it changes no other
    ones.

    Parameters
    ----------
    name : str
        Prefix of the rule.
    training : Training
        The training.
    held : mapping of str to LocalData
        Data of every party.
    kinds : tuple of message types
        Types to search, empty for all.
    """
    texts = held_values(training.transcript, held, training.schema, kinds)
    return Finding(f"{name}no message carries held values unsaid", not texts, "; ".join(texts))


def leaves_nothing(name: str, left: Sequence[str]) -> Finding:
    """Check that a training left nothing outside its messages, where an attack could find it."""
    what = "; ".join(dict.fromkeys(left))
    return Finding(f"{name}training leaves nothing but messages", not left, what)
