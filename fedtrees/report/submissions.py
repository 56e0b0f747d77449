"""Handle submissions to a leaderboard: write a bundle from a run, read bundles, merge them.

`write` copies the results of a finished run into a folder, with its suite, versions and checksums.
`read` treats such a folder as untrusted input: it checks names, sizes and kinds of files before
their content, and `check_rows` refuses every row that `write` cannot have written. `read_all` sorts
bundles by date and refuses copies. `merged` credits each cell to the first bundle that finished it.
`fedtrees.experiments.recompute` checks whether results are true, by computing some of them again.

A bundle is refused if it has a row that `fedtrees.report.submissions.write` cannot have written.
Examples are an unknown stage or status, a number that is not finite or exceeds the best possible
one, a unit or class that differs from that of the metric, a cost of the machine, or an advantage
that does not follow from its score.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedtrees import __version__
from fedtrees.core import results
from fedtrees.core.errors import FedtreesError, StoreError, UsageError, short
from fedtrees.core.files import (
    CHECKSUMS,
    parse_json,
    read_regular,
    write_listed,
    write_text,
)
from fedtrees.core.results import CPU, RAREST, described, measure, measures
from fedtrees.core.threat import Threat
from fedtrees.metrics.metric import advantage
from fedtrees.report.coverage import STOPPED_EARLY
from fedtrees.report.findings import is_unfinished
from fedtrees.report.results import (
    CELL_COLUMNS,
    load_rows,
    parse_rows,
    read_json,
    read_records,
    read_text,
)

STAGES = ("train", "cheated", "adversary", "attack", "blind", "reference")
#: Costs that a bundle contains although they depend on the machine or the data.
KEPT_COSTS = {"bytes", CPU.key, RAREST.key}
_STATUSES = ("ok", "failed", "timeout", "skipped", "no-claim")
# Classes of leaks. A row may state another class of leak than its metric.
_LEAKS = {"person", "guess", "group"}
# These columns are filled in rows of trainings only.
_OF_TRAININGS = ("claimed", "spent", "bytes_up", "bytes_down", "rounds")


def is_shared(row: Mapping[str, str]) -> bool:
    """Return whether bundles contain a row.

    They contain results, some costs (`KEPT_COSTS`), and the note that a search reached its limit.
    """
    stopped = row["part"] == STOPPED_EARLY
    return results.is_result(row) or row["metric"] in KEPT_COSTS or stopped


def shared(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row without times of the machine and without texts of errors.

    Such texts can contain names of files.
    """
    left_out = ["seconds"]
    if row["stage"] not in ("train", "cheated"):
        left_out += _OF_TRAININGS
    # The sentence can be built from the code.
    if row["reason_code"]:
        left_out.append("reason")
    if row["status"] in ("failed", "timeout"):
        left_out += ["reason", "reason_args"]
    return {**row, **dict.fromkeys(left_out, "")}


def check_rows(where: str, text: str, records: Sequence[Mapping[str, str]]) -> None:
    """Raise `StoreError` unless `write` can have written every row of a bundle.

    The text must equal the output of a CSV writer for its records. Otherwise, two programs that
    read the same text may see different rows.

    Parameters
    ----------
    where : str
        Folder of the bundle, for the message.
    text : str
        Content of its ``rows.csv``.
    records : sequence of mapping
        The same rows as the `csv` module reads them.
    """
    names, header = [c.name for c in results.COLUMNS], list(records[0]) if records else []
    unknown = [name for name in header if name not in names]
    if not records or unknown:
        shown = f"unknown columns {short(unknown)}" if unknown else "no rows"
        raise StoreError(f"{where} is refused: rows.csv has {shown}")
    out = io.StringIO()
    writer = csv.DictWriter(out, header, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(records)
    if out.getvalue() != text:
        raise StoreError(f"{where} is refused: rows.csv is not as fedtrees writes it; submit again")
    for at, record in enumerate(records, 1):
        for problem in _problems(record):
            raise StoreError(f"{where} is refused: record {at} of rows.csv {problem}")


def _problems(record: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons why `write` cannot have written a record."""
    for column in results.COLUMNS:
        text = record.get(column.name, "")
        if not text.isprintable():
            yield f"has {column.name}={short(text)!r}, with characters that cannot be printed"
        if column.kind in ("number", "whole") and text and not math.isfinite(float(text)):
            yield f"has {column.name}={text}; give a finite number, or leave it empty"
    for name, allowed in (("stage", STAGES), ("status", _STATUSES)):
        if record[name] not in allowed:
            yield f"has {name}={short(record[name])!r}; known: {', '.join(allowed)}"
    yield from _problems_of_metric(record)
    if not is_shared(record):
        yield (
            f"is a cost or detail ({short(record['metric'])}) that fedtrees leaderboard submit "
            "leaves out"
        )
    cleared = shared(record)
    for name in (name for name in cleared if cleared[name] != record.get(name, "")):
        yield (
            f"has {name}={short(record[name])!r}, which fedtrees leaderboard submit leaves empty "
            "there"
        )
    if record["threat"] and record["stage"] != "cheated":
        try:
            threat = Threat.parse(record["threat"])
        except FedtreesError as err:
            yield f"has a threat that cannot be read: {short(err, 200)}"
            return
        for name in ("adversary", "access"):
            if record[name] not in ("", getattr(threat, name)):
                yield f"has {name}={short(record[name])!r}, and its threat is {threat}"


def _problems_of_metric(record: Mapping[str, str]) -> Iterator[str]:
    """Yield the contradictions between a record and the definition of its metric."""
    key, klass = record["metric"], record["measure_class"]
    if not key:
        return
    if key not in measures():
        yield f"measures {short(key)!r}, which no installed metric measures"
        return
    spec = measure(key)
    if record["unit"] not in ("", spec.unit):
        yield f"has {key} in {short(record['unit'])!r}; it is measured in {spec.unit!r}"
    if klass not in ("", spec.klass) and not {klass, spec.klass} <= _LEAKS:
        yield f"has {key} of the class {short(klass)!r}; it is of the class {spec.klass!r}"
    for name in ("value", "blind", "population"):
        text = record[name]
        if text and spec.best is not None and math.isfinite(spec.best):
            # For a loss, smaller values are better, and the sign is negative.
            beyond = (float(text) - spec.best) * spec.sign
            if beyond > 1e-9:
                yield f"has a {name} of {text} in {key}, beyond the best possible, {spec.best:g}"


def check_advantages(where: str, frame: pd.DataFrame) -> None:
    """Raise `StoreError` if an advantage does not follow from its score and its baseline.

    `where` is the folder of the bundle, and `frame` contains its rows as `load_rows` returns them.
    """
    scored = frame[(frame["stage"] == "attack") & frame["value"].notna()]
    for baseline, gain in (("blind", "advantage"), ("population", "beyond")):
        columns = (scored[c] for c in ("metric", "value", baseline, gain))
        for metric, value, low, stated_gain in zip(*columns, strict=True):
            computed = None if math.isnan(low) else advantage(value, low, best=measure(metric).best)
            expected = math.nan if computed is None else computed
            close = math.isclose(expected, stated_gain, rel_tol=1e-6, abs_tol=1e-6)
            if not (close or (math.isnan(expected) and math.isnan(stated_gain))):
                raise StoreError(
                    f"{where} is refused: {gain} {stated_gain:g} in {metric} does not follow from "
                    f"a score of {value:g} and a {baseline} one of {low:g}; it is {expected:g}"
                )


ABOUT, ROWS, SUITE = "submission.json", "rows.csv", "suite.toml"
FILES = ("columns.csv", ROWS, ABOUT, SUITE)
#: List of the submissions that a leaderboard accepted, with the dates, next to their folders.
ACCEPTED = "accepted.csv"
#: Largest sizes in bytes. The default bench has 2.1 MB of rows.
_LIMITS = {ROWS: 50_000_000, SUITE: 1_000_000, "columns.csv": 1_000_000, ABOUT: 100_000}
_LIST_LIMIT = 1_000_000  # bytes of a list of checksums, or of the list of accepted submissions
# Valid name of a folder, because it is shown in terminals and on pages.
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_DATE = "%Y-%m-%dT%H:%M:%SZ"
_FORMAT = 1
_VERSIONS = ("fedtrees", "python", "system", "libraries")  # keys of environment.json
_CELL = [*CELL_COLUMNS]
_ROW = [*CELL_COLUMNS, "metric", "part"]
_RESULT = ("stage", "protocol", "defense", "threat", "attack", "seed", "metric", "value", "blind")
# Trainings and attacks, but not the baselines, which several of them share.
_COMPUTED = STAGES[:4]
# Largest difference between two submissions. It is the one that a recomputation may have.
_SAME = {"attack": 0.05}
_MOST = 100  # largest number of characters of a name


@dataclass(frozen=True)
class Submission:
    """The content of one bundle, whose files match its checksums and whose rows are well formed.

    Attributes
    ----------
    folder : Path
        Folder of the bundle.
    digest : str
        SHA-256 of its list of checksums. It therefore depends on all its files.
    by : str
        Name of the submitter.
    date : str
        Time in UTC at which the bundle was written, according to the submitter. Empty in bundles of
        older releases.
    about : mapping
        Versions of the software and of the system that the run used.
    suite : str
        Its suite as TOML.
    text : str
        Its ``rows.csv``.
    """

    folder: Path
    digest: str
    by: str
    date: str
    about: Mapping[str, Any]
    suite: str = field(repr=False)
    text: str = field(repr=False)

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.folder.name

    @cached_property
    def records(self) -> list[dict[str, str]]:
        """Its rows as text, as they are written in the file."""
        return list(csv.DictReader(io.StringIO(self.text)))

    @cached_property
    def rows(self) -> pd.DataFrame:
        """Its rows as `load_rows` returns them, with the column ``submission``."""
        return parse_rows(self.folder / ROWS, self.text).assign(submission=self.name)


def write(run: Path, out: Path, by: str) -> Submission:
    """Write a bundle with the results of a finished run into a folder.

    Costs that depend on the machine, details of attacks, scores by column, texts of errors and
    names of folders are left out.

    Parameters
    ----------
    run : Path
        Folder of the finished run.
    out : Path
        Folder to write. It must be empty or not exist.
    by : str
        Name of the submitter.

    Returns
    -------
    submission : Submission
        The bundle, as `read` returns it.

    Raises
    ------
    StoreError
        If the run cannot be read, or if the folder is not empty or cannot be written.
    UsageError
        If the run is not finished or a name is not allowed.
    """
    _check_name(by)
    _check_folder(out)
    load_rows(run)
    suite, environment = read_text(run, SUITE), read_json(run, "environment.json")
    if suite is None or is_unfinished(run) or not isinstance(environment, dict):
        raise UsageError(f"{run} is no finished run; fedtrees bench --resume --output {run}")
    if out.exists() and any(out.iterdir()):
        raise StoreError(f"{out} is not empty; choose another -o")
    # Only rows that other persons can verify are published.
    shared_rows = map(shared, filter(is_shared, read_records(run).to_dict("records")))
    now = datetime.now(UTC).strftime(_DATE)
    about = {"format": _FORMAT, "by": by, "date": now, **{k: environment.get(k) for k in _VERSIONS}}
    content = {
        "columns.csv": described(),
        ROWS: results.write({**row, "run": out.name} for row in shared_rows),
        ABOUT: json.dumps(about, indent=1, sort_keys=True) + "\n",
        SUITE: suite,
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise StoreError(f"cannot make {out}: {err.strerror or err}") from err
    for name, part in content.items():
        write_listed(out, name, part.encode())
    (out / ".claims").unlink(missing_ok=True)
    return read(out)


def _check_name(by: object) -> None:
    """Raise `UsageError` unless the name of a submitter is printable and not empty or too long."""
    if not (isinstance(by, str) and by.strip() and by.isprintable() and len(by) <= _MOST):
        raise UsageError(f"--by {by!r}: give a name of at most {_MOST} characters")


def _check_folder(folder: Path) -> None:
    """Raise `UsageError` unless the name of a folder consists of harmless characters."""
    name = folder.absolute().name
    if not _NAME.fullmatch(name) or set(name) == {"."}:
        raise UsageError(
            f"the folder of a submission is called {short(name)!r}; use at most {_MOST} of the "
            "characters A-Z, a-z, 0-9, '.', '_' and '-'"
        )


def read(folder: Path) -> Submission:
    """Read a bundle from an untrusted source.

    Raises
    ------
    StoreError
        If a file is missing, is a link or a device, is too large or does not match its checksum, if
        another version wrote it, or if `write` cannot have written one of its rows.
    """
    try:
        _check_folder(folder)
    except UsageError as err:
        raise StoreError(f"{str(folder)!r} is refused: {err}") from err
    # A link could make the reader open any file of the machine.
    if folder.is_symlink():
        raise StoreError(f"{folder} is refused: it is a symbolic link; give a folder with files")
    listed, content = _content(folder)
    about = parse_json(content[ABOUT], f"{folder.name}/{ABOUT}")
    number = about.get("format") if isinstance(about, dict) else None
    if number != _FORMAT:
        raise StoreError(
            f"{folder} is a submission of format {number!r:.60}, and fedtrees {__version__} reads "
            f"{_FORMAT}: submit the run again with this version"
        )
    try:
        _check_name(about.get("by"))
        date = _checked_date(about.get("date", ""))
        suite, text = content[SUITE].decode(), content[ROWS].decode()
    except ValueError as err:
        raise StoreError(f"{folder}: {err}") from err
    digest = hashlib.sha256(listed).hexdigest()
    submission = Submission(folder, digest, about["by"], date, about, suite, text)
    # Parsing the table first gives a specific message if it is damaged.
    frame = submission.rows
    check_rows(str(folder), text, submission.records)
    check_advantages(str(folder), frame)
    return submission


def _content(folder: Path) -> tuple[bytes, dict[str, bytes]]:
    """Return the list of checksums and the files of a bundle. Each file is read only once."""
    try:
        # A file that is read twice could be exchanged after its checksum was verified.
        listed = read_regular(folder / CHECKSUMS, _LIST_LIMIT, follow=False)
        content = {n: read_regular(folder / n, _LIMITS[n], follow=False) for n in FILES}
    except OSError as err:
        lost = Path(err.filename or CHECKSUMS).name
        why = err.strerror or err
        raise StoreError(f"{folder} is no whole submission: {lost} cannot be read ({why})") from err
    lines = listed.decode("utf-8", "replace").splitlines()
    digests = [(line[:64], line[66:]) for line in lines]
    names = sorted(name for _, name in digests)
    # Exactly the expected files must be listed, so that no further file can be added unnoticed.
    if names != sorted(FILES):
        shown = short(", ".join(map(repr, names)), 200)
        raise StoreError(f"{folder}: {CHECKSUMS} lists {shown}; not {', '.join(FILES)}")
    for name, part in content.items():
        if (hashlib.sha256(part).hexdigest(), name) not in digests:
            raise StoreError(
                f"{(folder / name).as_posix()!r} was changed: its sha256 is not in "
                f"{CHECKSUMS}; submit the run again"
            )
    return listed, content


def _checked_date(text: object) -> str:
    """Return a date unchanged. Raise ValueError if it is malformed or lies in the future."""
    # Older releases wrote no date.
    if text == "":
        return ""
    rule = f"date {short(text)!r}: give the time of the submission in UTC, such as 2026-11-29T12:00"
    if not isinstance(text, str):
        raise ValueError(rule)
    try:
        date = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except ValueError:
        raise ValueError(f"{rule}:00Z") from None
    if date > datetime.now(UTC) + timedelta(days=1):
        raise ValueError(f"date {text} lies in the future")
    return date.strftime(_DATE)


def read_all(folder: Path) -> list[Submission]:
    """Read the submissions of a folder, in the order in which they are credited.

    Submissions that are listed in ``accepted.csv`` come first, in the order of that file. The
    remaining ones follow by their stated date, and those without a date come last.

    Raises
    ------
    StoreError
        If `read` refuses a submission, if there is none, or if one repeats an earlier one.
    """
    try:
        folders = sorted(p for p in folder.iterdir() if p.is_dir() or p.is_symlink())
    except OSError as err:
        raise StoreError(f"{folder} cannot be read: {err.strerror or err}") from err
    if not folders:
        raise StoreError(
            f"{folder} contains no submissions; fedtrees leaderboard submit RUN -o {folder}/NAME"
        )
    order = {digest: at for at, digest in enumerate(_read_accepted(folder))}
    # Submissions without a date are sorted after all dates, because "later" follows every digit.
    submissions = sorted(
        map(read, folders),
        key=lambda s: (order.get(s.digest, len(order)), s.date or "later", s.name),
    )
    _check_copies(submissions, order)
    return submissions


def _read_accepted(folder: Path) -> dict[str, dict[str, str]]:
    """Return the lines of the list of accepted submissions by digest, in the order of the file."""
    try:
        text = read_regular(folder / ACCEPTED, _LIST_LIMIT, follow=False).decode()
        return {line["sha256"]: line for line in csv.DictReader(io.StringIO(text))}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError) as err:
        raise StoreError(
            f"{folder / ACCEPTED} cannot be read ({err}); put it back, or delete it to order "
            "submissions by the dates that they state"
        ) from err


def accept(folder: Path, submissions: Sequence[Submission]) -> None:
    """Add submissions to the list of accepted ones.

    The list orders submissions by the time at which a leaderboard accepted them, so that later
    copies cannot take credit. The date inside a bundle is not reliable, because its submitter can
    backdate it.
    """
    lines = _read_accepted(folder)
    now = datetime.now(UTC).strftime(_DATE)
    new = [s for s in submissions if s.digest not in lines]
    if not new:
        return
    out = io.StringIO()
    writer = csv.DictWriter(
        out, ("sha256", "accepted", "name"), lineterminator="\n", extrasaction="ignore"
    )
    writer.writeheader()
    writer.writerows(lines.values())
    writer.writerows({"sha256": s.digest, "accepted": now, "name": s.name} for s in new)
    write_text(folder / ACCEPTED, out.getvalue())


def _check_copies(submissions: Sequence[Submission], accepted: Mapping[str, int]) -> None:
    """Raise `StoreError` if a submission contains only numbers of an earlier one.

    Numbers are compared without parameters, so that stating a default explicitly makes no new
    result. Two submissions by different persons with the same date and common cells are also
    refused, unless one of them was already accepted, because it is not known which of them is
    earlier.
    """
    earlier: list[tuple[Submission, set[Any], set[Any]]] = []
    for each in submissions:
        cells, numbers = _finished_cells(each), _numbers(each)
        for other, cells_of_other, numbers_of_other in earlier:
            # The list of accepted submissions decides the order, if one of the two is in it.
            unordered = each.date == other.date and {each.digest, other.digest}.isdisjoint(accepted)
            if unordered and each.by != other.by and cells & cells_of_other:
                raise StoreError(
                    f"{each.folder} and {other.folder} have cells in common and state the same "
                    f"date, and neither is in {ACCEPTED}; remove the copy"
                )
            if numbers and numbers <= numbers_of_other:
                raise StoreError(
                    f"{each.folder} (by {each.by}) repeats the results of {other.folder} (by "
                    f"{other.by}); remove one of them"
                )
        earlier.append((each, cells, numbers))


def _check_additions(submissions: Sequence[Submission]) -> None:
    """Raise `StoreError` if earlier submissions finished every cell of a later one.

    Cells are compared without their numbers, so that a slightly changed score makes no new result.
    """
    earlier: dict[str, set[Any]] = {}
    for each in submissions:
        cells = _finished_cells(each)
        if cells <= set().union(*earlier.values()):
            names = (
                ", ".join(name for name, earlier_cells in earlier.items() if cells & earlier_cells)
                or "none"
            )
            raise StoreError(
                f"{each.folder} (by {each.by}) adds nothing: all of its {len(cells)} finished "
                f"cells are in earlier submissions ({names}); remove it, or submit other cells"
            )
        earlier[each.name] = cells


def _finished_cells(submission: Submission) -> set[tuple[Any, ...]]:
    """Return the names of the trainings and attacks that a submission finished."""
    frame = submission.rows
    frame = frame[frame["stage"].isin(_COMPUTED) & ~frame["status"].isin(("failed", "timeout"))]
    return {*zip(*(frame[name] for name in _CELL), strict=True)}


def _numbers(submission: Submission) -> set[tuple[str, ...]]:
    """Return the results of trainings and attacks, each named without its parameters."""
    return {
        tuple(record[name] for name in _RESULT)
        for record in submission.records
        if record["value"] and record["stage"] in _COMPUTED and results.is_result(record)
    }


def merged(submissions: Sequence[Submission]) -> pd.DataFrame:
    """Return the rows of all submissions. Each cell is taken from the first one that finished it.

    Raises `StoreError` if two submissions contradict each other, or if one adds no cell to the
    earlier ones.
    """
    all_rows = pd.concat([s.rows for s in submissions], ignore_index=True)
    all_rows["setting"] = pd.Categorical(all_rows["setting"].tolist())
    for text in _contradictions(all_rows):
        raise StoreError(text)
    _check_additions(submissions)
    # A failed cell is credited only if no submission finished it.
    first = all_rows.assign(bad=all_rows["status"].isin(("failed", "timeout"))).sort_values(
        "bad", kind="stable"
    )
    # The sort was stable, so that among finished cells the earliest submission is first.
    owner = first.groupby(_CELL, observed=True)["submission"].transform("first")
    return all_rows[owner.reindex(all_rows.index) == all_rows["submission"]].reset_index(drop=True)


def _contradictions(every: pd.DataFrame) -> Iterator[str]:
    """Yield a message for each row whose values differ by more than a recomputation may."""
    values = every[every["value"].notna() & ~every["metric"].isin(KEPT_COSTS)]
    # Protocols share blind rows, and attack rows repeat the baselines with which they are compared.
    values = values[values["stage"] != "blind"]
    ends = {"low": ("value", "min"), "high": ("value", "max"), "of": ("submission", "nunique")}
    for key, (low, high, _) in (
        values.groupby(_ROW, observed=True).agg(**ends).query("of > 1").iterrows()
    ):
        # Some guesses of attacks depend on the machine.
        tolerance = _SAME.get(key[0], 1e-6)
        if not math.isclose(low, high, rel_tol=tolerance, abs_tol=tolerance):
            pair = values[(values[_ROW] == list(key)).all(axis=1)]
            names = [pair.loc[pair["value"] == v, "submission"].iloc[0] for v in (low, high)]
            where = " · ".join(str(part) for part in key[1:6] if part != "")
            yield (
                f"{' and '.join(names)} contradict each other: {key[6]} of {where:.200} is "
                f"{low:g} and {high:g}; recompute both (--recompute) and remove one"
            )
