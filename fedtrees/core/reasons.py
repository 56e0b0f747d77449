"""Reasons why something does not fit, did not run or has no result: codes with arguments.

Programs compare codes. A code is converted to a sentence only where the sentence is shown. The file
``reasons.csv`` in this folder has a state and a template for each code. The fields of a template
are the arguments of its code.

To find out why an attack did not run in a bench, use ``fedtrees show FOLDER --skipped``. The
underlying columns ``stage``, ``status``, ``reason_code`` and ``reason`` are in ``contexts.csv`` of
the run folder. Join this file with ``rows.csv`` by the column ``context``, or read both with
`fedtrees.report.load_rows`. A row with the stage ``attack`` states why the attack did not run, and
a row with the stage ``adversary`` states for one attack whether it applies. After an error, the
file of the task in the folder ``cells`` also contains the traceback. A skipped attack has no file
there, because its reason follows from the results of other tasks. ``fedtrees explain`` answers the
same question before a bench.
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
NO_CLAIM = "no-claim"  # state and status of an attack that finished without a claim
#: Reasons without a claim that state only that nothing is certain. An attack with such a reason
#: returns certain claims only, and other attacks guess the same values from the same messages.
NOT_CERTAIN = ("sums-not-exact", "leaf-values-ambiguous", "bounds-leave-a-choice")
#: Arguments that name the subject of a sentence, with the words that replace a missing one.
SLOTS = {"subject": "it", "protocol": "this protocol", "adversary": "the parties of the adversary"}


class Template(NamedTuple):
    """State and wording of a code.

    Attributes
    ----------
    state : str
        The states ``ok``, ``failed``, ``timeout`` and ``no-claim`` are also values of the column
        ``status``. All remaining states have the status ``skipped``.

        - ``ok``: there is no obstacle.
        - ``skip``: an attack does not apply to a view or to a table.
        - ``unfit``: two parts of a setting do not fit together, for example a defense and a
          protocol.
        - ``limit``: the data exceed a limit of an attack, for example its number of rows.
        - ``failed``: a cell ended with an error.
        - ``timeout``: a cell exceeded its time limit.
        - ``undefined``: a measure has no value, or there is nothing to compare a claim with.
        - ``void``: the claim of a defense is not valid, because the defense changed nothing.
        - ``gap``: an attack, a defense or a role was not part of the run.
        - ``no-claim``: an attack finished without a claim.
    text : str
        Template of the sentence, with its fields in braces.
    """

    state: str
    text: str

    @property
    def fields(self) -> frozenset[str]:
        """Names of the arguments."""
        return frozenset(name for _, name, _, _ in Formatter().parse(self.text) if name)


def _read() -> dict[str, Template]:
    """Read the templates of all codes."""
    with (Path(__file__).parent / "reasons.csv").open(newline="", encoding="utf-8") as file:
        return {code: Template(state, text) for code, state, text in list(csv.reader(file))[1:]}


TEMPLATES: Mapping[str, Template] = _read()


@dataclass(frozen=True, init=False)
class Reason:
    """A code and its named arguments: ``Reason("too-many-rows", rows=900, most=800)``.

    A reason without a code is written as ``Reason("other", text=...)``.

    Parameters
    ----------
    code : str
        One of the codes in ``reasons.csv``.
    **args : str, int or float
        Value of each field of the template.

    Raises
    ------
    UsageError
        If no template has the code, or if the arguments are not the fields of its template.
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
        """Read a reason from a file.

        Parameters
        ----------
        code : str
            The code.
        args : str
            Arguments as JSON.
        text : str
            The sentence in the file.

        Returns
        -------
        Reason
            If the code is from another release, a reason that consists of the sentence.
        """
        try:
            return cls(code, **json.loads(args or "{}"))
        except (TypeError, ValueError):  # a UsageError is a ValueError
            return cls("other", text=text) if text else FITS

    @property
    def ok(self) -> bool:
        """Whether there is no obstacle."""
        return self.code == FITS.code

    @property
    def state(self) -> str:
        """State of the code (`Template`)."""
        return TEMPLATES[self.code].state

    @property
    def status(self) -> str:
        """Value of the column ``status`` for a cell that ended for this reason."""
        statuses = ("ok", "failed", "timeout", NO_CLAIM)
        return self.state if self.state in statuses else "skipped"

    @property
    def alike(self) -> Reason:
        """The same reason without its subject, for grouping subjects with equal reasons."""
        return Reason(self.code, **{k: v for k, v in self.args if k not in SLOTS})

    def columns(self) -> dict[str, str]:
        """Return the reason as columns of ``rows.csv``."""
        args = json.dumps(dict(self.args)) if self.args else ""
        codes = {"reason_code": self.code, "reason_args": args, "state_code": self.state}
        return {"reason": "" if self.ok else " ".join(str(self).split()), **codes}

    def __str__(self) -> str:
        named = {k: repr(v) if k in SLOTS else v for k, v in self.args}
        return TEMPLATES[self.code].text.format(**SLOTS | named)


class Unfit(UsageError):
    """Parts of a request do not fit together (exit code 2).

    Parameters
    ----------
    reason : Reason
        Why they do not fit. Its sentence is the error message.
    """

    def __init__(self, reason: Reason) -> None:
        self.reason = reason
        super().__init__(str(reason))


FITS = Reason("fits")
