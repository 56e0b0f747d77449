"""Inline grammar ``name[key=value,...]`` of the command line, suites and results.

``laplace-hist[epsilon=1,4,16]`` is a grid of three specs. ``split-only+leaf-rounding[decimals=2]``
is a composition of two defenses, applied from left to right.
"""

import csv
import io
import itertools
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedtrees.core.errors import UsageError, short

Value = bool | int | float | str | None
MOST_COMBINATIONS = 10_000  # of one grid, so that a typing error cannot exhaust the memory
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]*")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|[+-]?(?:inf|infinity|nan)", re.IGNORECASE
)
_MOST_DIGITS = 18  # of an integer, so that it fits an int64


@dataclass(frozen=True)
class Spec:
    """A name with parameters, for example ``laplace-hist[epsilon=4]``.

    Attributes
    ----------
    name : str
        Registered name of a protocol, defense or attack.
    params : mapping of str to (bool, int, float, str or None)
        Value of each given parameter. The remaining ones have their default.

    Examples
    --------
    >>> str(Spec("laplace-hist", {"epsilon": 4.0}))
    'laplace-hist[epsilon=4]'
    """

    name: str
    params: Mapping[str, Value] = field(default_factory=dict)

    @property
    def inline(self) -> str:
        """The parameters as ``key=value,...`` in their order."""
        return ",".join(f"{k}={show(v)}" for k, v in self.params.items())

    def __str__(self) -> str:
        return f"{self.name}[{self.inline}]" if self.params else self.name

    def __hash__(self) -> int:
        return hash((self.name, tuple(self.params.items())))


def show(value: Value) -> str:
    """Write a parameter value in the form that `parse_value` reads.

    Parameters
    ----------
    value : bool, int, float, str or None
        The value.

    Returns
    -------
    str
        Text with at most 12 significant digits if they determine the float.
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.12g}" if float(f"{value:.12g}") == value else repr(value)
    return str(value)


def parse_value(text: str) -> Value:
    """Read ``true``, ``none``, an integer, a float, or else a plain string.

    Parameters
    ----------
    text : str
        The value as a user writes it.

    Returns
    -------
    bool, int, float, str or None
        The value. ``null`` is also read as None.

    Raises
    ------
    UsageError
        If the text is a number in the notation of Python but not of fedtrees (``1_000``, digits of
        another script), if the number is too large, or if the text has unprintable characters.
    """
    text = text.strip()
    word = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in word:
        return word[text.lower()]
    if _WHOLE.fullmatch(text):
        if len(text.lstrip("+-0")) > _MOST_DIGITS:
            raise UsageError(
                f"{short(text)!r} has {len(text.lstrip('+-'))} digits; whole numbers have "
                f"{_MOST_DIGITS} at most"
            )
        return int(text)
    if _NUMBER.fullmatch(text):
        # The number is too large for a float, for example 1e999.
        if math.isinf(float(text)) and "inf" not in text.lower():
            raise UsageError(f"{short(text)!r} is beyond float64; write inf for no limit")
        return float(text)
    if not text.isprintable():
        raise UsageError(f"{short(text)!r} has characters that cannot be printed")
    if _is_number(text):
        raise UsageError(f"{short(text)!r} is not a number here; write it with the digits 0 to 9")
    return text


def _is_number(text: str) -> bool:
    """Return whether Python reads the text as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def split_outside(text: str, separator: str) -> list[str]:
    """Split a text at a separator outside brackets, and drop empty pieces.

    Parameters
    ----------
    text : str
        For example ``"a[x=1,2],b"``.
    separator : str
        One character.

    Returns
    -------
    list of str
        The pieces without surrounding spaces.

    Raises
    ------
    UsageError
        If a bracket is opened and not closed, or the reverse.

    Examples
    --------
    >>> split_outside("a[x=1,2],b", ",")
    ['a[x=1,2]', 'b']
    """
    pieces, depth, start = [], 0, 0
    for at, char in enumerate(text):
        # The separator may occur inside brackets, for example in a list of values.
        depth += (char == "[") - (char == "]")
        if depth < 0:
            raise UsageError(f"unbalanced ']' in {short(text)!r}")
        if char == separator and depth == 0:
            pieces.append(text[start:at])
            start = at + 1
    if depth:
        raise UsageError(f"unbalanced '[' in {short(text)!r}; write name[key=value]")
    pieces.append(text[start:])
    return [p.strip() for p in pieces if p.strip()]


def parse_grid(text: str) -> list[Spec]:
    """Read one name with a grid of parameters and return every combination.

    Parameters
    ----------
    text : str
        ``name`` or ``name[key=value,value,...]``.

    Returns
    -------
    list of Spec
        One for each combination of the values. The last parameter changes fastest.

    Raises
    ------
    UsageError
        If the text is not of this form, if a value is invalid (`parse_value`), or if there are more
        than `MOST_COMBINATIONS` combinations.

    Examples
    --------
    >>> [str(spec) for spec in parse_grid("laplace-hist[epsilon=1,4]")]
    ['laplace-hist[epsilon=1]', 'laplace-hist[epsilon=4]']
    """
    text = text.strip()
    name, bracket, rest = text.partition("[")
    name = name.strip()
    if not _NAME.fullmatch(name) or (bracket and not rest.endswith("]")):
        raise UsageError(f"cannot read {short(text)!r}; write name or name[key=value,value,...]")
    # A token without "=" is one more value of the key before it.
    axes: dict[str, list[Value]] = {}
    key, inside = None, rest.removesuffix("]").strip()
    for token in map(str.strip, inside.split(",") if inside else ()):
        if not token:
            raise UsageError(f"{short(text)!r} has an empty value; leave out the comma")
        if "=" in token:
            key, _, token = token.partition("=")
            key = key.strip()
            if key in axes:
                raise UsageError(f"{short(text)!r} gives {short(key)!r} twice")
            axes[key] = []
        if key is None:
            raise UsageError(f"cannot read {short(token)!r} in {short(text)!r}; write key=value")
        try:
            axes[key].append(parse_value(token))
        except UsageError as error:
            raise UsageError(f"{name}[{short(key)}=...]: {error}") from None
    # The number is checked before the combinations are created.
    if math.prod(map(len, axes.values())) > MOST_COMBINATIONS:
        raise UsageError(f"{short(text)!r} has more than {MOST_COMBINATIONS} combinations")
    combinations = itertools.product(*axes.values())
    return [Spec(name, dict(zip(axes, values, strict=True))) for values in combinations]


def parse_list(texts: Iterable[str]) -> list[Spec]:
    """Read several grids.

    Parameters
    ----------
    texts : iterable of str
        Each text contains one or more grids, separated by commas.

    Returns
    -------
    list of Spec
        All combinations of all grids, in order.

    Raises
    ------
    UsageError
        If a text cannot be read (`parse_grid`).
    """
    return [s for text in texts for piece in split_outside(text, ",") for s in parse_grid(piece)]


@dataclass(frozen=True)
class Composed:
    """Specs joined by ``+``, applied from left to right. ``none`` is the empty composition.

    Attributes
    ----------
    parts : tuple of Spec
        The specs in order.
    """

    parts: tuple[Spec, ...] = ()

    @property
    def name(self) -> str:
        """Names of the parts, joined by ``+``."""
        return "+".join(p.name for p in self.parts) or "none"

    @property
    def inline(self) -> str:
        """Parameters of the parts in order, joined by ``;``. Empty if no part has parameters."""
        texts = [p.inline for p in self.parts]
        return ";".join(texts) if any(texts) else ""

    def __str__(self) -> str:
        return "+".join(map(str, self.parts)) or "none"


def parse_composed(texts: Iterable[str]) -> list[Composed]:
    """Read compositions with grids.

    Parameters
    ----------
    texts : iterable of str
        Each text contains one or more compositions, separated by commas.

    Returns
    -------
    list of Composed
        Every combination. The part ``none`` is left out.

    Raises
    ------
    UsageError
        If a text cannot be read, or has an empty part (``a+``).

    Examples
    --------
    >>> [str(composed) for composed in parse_composed(["a+b[x=1,2]"])]
    ['a+b[x=1]', 'a+b[x=2]']
    """
    result = []
    for text in texts:
        for piece in split_outside(text, ","):
            if piece.startswith("+") or piece.endswith("+"):
                raise UsageError(
                    f"{short(piece)!r} joins a part to nothing; write a+b, or leave out '+'"
                )
            grids = [parse_grid(p) for p in split_outside(piece, "+")]
            if math.prod(map(len, grids)) > MOST_COMBINATIONS:
                raise UsageError(f"{short(piece)!r} has more than {MOST_COMBINATIONS} combinations")
            for parts in itertools.product(*grids):
                result.append(Composed(tuple(p for p in parts if p.name != "none")))
    return result


def written(names: str, inline: str) -> str:
    """Write a composition from the two columns of a row with its names and its parameters.

    Parameters
    ----------
    names : str
        `Composed.name`.
    inline : str
        `Composed.inline`.

    Returns
    -------
    str
        Text that `parse_one` reads.

    Examples
    --------
    >>> written("split-only+laplace-hist", ";epsilon=4")
    'split-only+laplace-hist[epsilon=4]'
    """
    parts = names.split("+")
    inside = inline.split(";") if inline else []
    inside += [""] * (len(parts) - len(inside))
    return "+".join(f"{n}[{p}]" if p else n for n, p in zip(parts, inside, strict=False))


def parse_one(text: str) -> Composed:
    """Read one composition in the form of `written`.

    Parameters
    ----------
    text : str
        For example ``"split-only+laplace-hist[epsilon=4]"``.

    Returns
    -------
    Composed
        The composition.

    Raises
    ------
    UsageError
        If the text is not exactly one composition.
    """
    compositions = parse_composed([text])
    if len(compositions) != 1:
        raise UsageError(f"{short(text)!r} names {len(compositions)} compositions; give one")
    return compositions[0]


def split_names(texts: Iterable[str]) -> list[str]:
    """Split the column names of an option at commas.

    A name with a comma is quoted as in a CSV file: ``--drop '"Age, years",bmi'``.

    Parameters
    ----------
    texts : iterable of str
        Values of the option, which a user may give several times.

    Returns
    -------
    list of str
        Names of columns.

    Examples
    --------
    >>> split_names(['"Age, years",bmi'])
    ['Age, years', 'bmi']
    """
    rows = csv.reader(texts, skipinitialspace=True)
    return [name for row in rows for name in row if name]


def joined_names(names: Iterable[str]) -> str:
    """Join column names in the form that `split_names` reads.

    Parameters
    ----------
    names : iterable of str
        Names of columns.

    Returns
    -------
    str
        Names with commas are quoted.
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(list(names))
    return text.getvalue()
