"""Why something does not fit, did not run or tells nothing: a code with its arguments.

Whoever needs to know reads codes; sentences are written last, from ``reasons.csv`` beside this
file: a code, its state and a template, whose fields are the code's arguments.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import NamedTuple

from fedtrees.core.errors import UsageError, did_you_mean

Plain = str | int | float
NO_CLAIM = "no-claim"  # state and status of an attack that ran to its end and returned no claim
#: Whom a sentence is about, and what it says where nobody is named.
SLOTS = {"subject": "it", "protocol": "this protocol", "adversary": "the principals"}


class Template(NamedTuple):
    """How a code is said.

    `state`: ``ok``; ``skip`` and ``unfit``, it does not apply and cannot be made to; ``limit``;
    ``failed``; ``timeout``; ``undefined``; ``void``, a claim that does not hold; ``gap``, not run;
    ``no-claim``, an attack ran to its end and returned no claim.
    """

    state: str
    text: str

    @property
    def fields(self) -> frozenset[str]:
        """The names of the arguments."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.text) if name)


def _read() -> dict[str, Template]:
    with (Path(__file__).parent / "reasons.csv").open(newline="", encoding="utf-8") as file:
        return {code: Template(state, text) for code, state, text in list(csv.reader(file))[1:]}


TEMPLATES: Mapping[str, Template] = _read()


@dataclass(frozen=True, init=False)
class Reason:
    """A code and its arguments, by name: ``Reason("too-many-rows", rows=900, most=800)``.

    Raises `UsageError` if no template has the code, or its fields are others. What no code says is
    ``Reason("other", text=...)``.
    """

    code: str
    args: tuple[tuple[str, Plain], ...]

    def __init__(self, code: str, /, **args: Plain) -> None:
        if code not in TEMPLATES:
            raise UsageError(f"no reason has the code {code!r}{did_you_mean(code, TEMPLATES)}")
        required, provided = TEMPLATES[code].fields, set(args)
        if required - set(SLOTS) - provided or provided - required:
            raise UsageError(f"reason {code!r} takes {sorted(required)}; got {sorted(provided)}")
        object.__setattr__(self, "code", code)
        object.__setattr__(self, "args", tuple(sorted(args.items())))

    @classmethod
    def read(cls, code: str, args: str, text: str = "") -> Reason:
        """Return what stands in a file: a code of another release is its text."""
        try:
            return cls(code, **json.loads(args or "{}"))
        except (TypeError, ValueError):  # a UsageError is a ValueError
            return cls("other", text=text) if text else FITS

    @property
    def ok(self) -> bool:
        """Whether nothing speaks against it."""
        return self.code == FITS.code

    @property
    def state(self) -> str:
        """What kind of reason it is (`Template`)."""
        return TEMPLATES[self.code].state

    @property
    def status(self) -> str:
        """The column ``status`` of a cell that ended for this reason."""
        statuses = ("ok", "failed", "timeout", NO_CLAIM)
        return self.state if self.state in statuses else "skipped"

    @property
    def alike(self) -> Reason:
        """The same of anybody: what groups things that have one reason."""
        return Reason(self.code, **{k: v for k, v in self.args if k not in SLOTS})

    def columns(self) -> dict[str, str]:
        """Return it as the columns of ``rows.csv``."""
        args = json.dumps(dict(self.args)) if self.args else ""
        codes = {"reason_code": self.code, "reason_args": args, "state_code": self.state}
        return {"reason": "" if self.ok else " ".join(str(self).split()), **codes}

    def __str__(self) -> str:
        named = {k: repr(v) if k in SLOTS else v for k, v in self.args}
        return TEMPLATES[self.code].text.format(**SLOTS | named)


class Unfit(UsageError):
    """Things that do not go together (exit code 2)."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(str(reason))


FITS = Reason("fits")
