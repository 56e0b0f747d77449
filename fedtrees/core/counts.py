"""The grammar of counts and lists in messages: one helper for each."""

from collections.abc import Sequence


def many(n: int, word: str, plural: str = "") -> str:
    """Write a number of things; their plural, if another letter than s makes it."""
    return f"{n:,} {word if n == 1 else plural or word + 's'}"


def listed(texts: Sequence[str], last: str = "and") -> str:
    """Write several things as a list: ``a``, ``a and b``, ``a, b and c``."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"
