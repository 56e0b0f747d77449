"""Grammar of counts and lists in messages to the user."""

from collections.abc import Sequence


def many(n: int, word: str, plural: str = "") -> str:
    """Write a number with its noun. `plural` is the plural if it is not formed with s."""
    return f"{n:,} {word if n == 1 else plural or word + 's'}"


def listed(texts: Sequence[str], last: str = "and") -> str:
    """Write several texts as a list: ``a``, ``a and b``, ``a, b and c``."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}"
