"""The agreement of the parties of a federation: one file, whose hash each party allows.

The module also counts the runs in which a site took part. Each run of an agreement draws fresh
noise on the same rows, so that the epsilons of the runs add up (basic composition, Dwork et al.
2006). A site therefore takes part once by default. It writes a line to a local file before it
answers the first request on its rows. For this reason, a run that was stopped counts as well, and
two simultaneous jobs count as two.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from fedtrees.core.composition import Composition
from fedtrees.core.errors import DataError, UsageError, check_known, did_you_mean, short
from fedtrees.core.files import append_private, locked
from fedtrees.core.guarantee import ApproximateDP, Guarantee, PureDP, join, parse
from fedtrees.core.host import Agreement
from fedtrees.core.registry import register
from fedtrees.core.results import MOST_WHOLE
from fedtrees.core.schema import Feature, Kind, Schema
from fedtrees.core.source import code_digest
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import NoiseFrom
from fedtrees.experiments.evaluate import make_defense
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import make_agreement

#: Name of the coordinating server, which has no rows, and of its site.
SERVER = "server"
#: Range of `round_timeout` in seconds. A frame takes milliseconds, and no round takes a day.
TIMEOUTS = (1.0, 86_400.0)
# Largest absolute value of a declared range or cut point, because values are float32.
MOST_VALUE = 3.4e38


@dataclass(frozen=True, kw_only=True)
class FederationAgreement:
    """Public facts on which the parties of a federation agree before any of them reads its table.

    Attributes
    ----------
    name : str
        Letters, digits and hyphens. It names the folder of the run.
    protocol, defense : str
        As on the command line.
    schema : Schema
        Columns with public ranges and categories, target and classes.
    parties : mapping of str to str
        Site of every party with rows, by the name of the party in the protocol, in order.
    installation : str
        Digest of the source of this package that every party runs, in hexadecimal digits.
    seed : int
        Public seed of draws that hide nothing.
    noise_from : {"system", "seed"}
        ``seed`` is for tests: every reader of the file can reproduce all noise.
    round_timeout : float
        Seconds from 1 to 86,400 within which every party learns that another one is lost.

    Raises
    ------
    UsageError
        If a value has a wrong type or range, or if the protocol and the defense cannot run between
        machines.
    """

    name: str
    protocol: str
    schema: Schema
    parties: Mapping[str, str]
    installation: str
    defense: str = "none"
    seed: int = 0
    noise_from: NoiseFrom = "system"
    round_timeout: float = 60.0

    def __post_init__(self) -> None:
        for key in ("name", "protocol", "defense", "installation"):
            check_text(key, getattr(self, key))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", self.name):
            raise UsageError(f"name = {short(self.name)!r}: give letters, digits and hyphens")
        if not re.fullmatch(r"[0-9a-f]{1,64}", self.installation):
            raise UsageError(
                f"installation = {short(self.installation)!r}: give the digest of the source in "
                "hexadecimal digits, as `fedtrees federation new` writes it"
            )
        check_known("noise_from", self.noise_from, get_args(NoiseFrom))
        if type(self.seed) is not int or not 0 <= self.seed <= MOST_WHOLE:
            raise UsageError(
                f"seed = {short(self.seed)!r}: give a whole number from 0 to {MOST_WHOLE}"
            )
        check_number("round_timeout", self.round_timeout, *TIMEOUTS)
        self._check_parties()
        self._check_open()
        self.made.check(self.schema)
        _ = self.agreement

    def _check_parties(self) -> None:
        """Refuse parties that the protocol does not have, and ambiguous sites."""
        if not isinstance(self.parties, Mapping):
            raise UsageError(f"parties = {short(self.parties)!r}: write a table [parties]")
        for party, site in self.parties.items():
            check_text(f"[parties] {party}", site)
            if site == SERVER:
                raise UsageError(
                    f"[parties] {party} = {site!r}: the coordinating server has this name; give "
                    "the name in the certificate of the site"
                )
        expected = self.made.holder_names(len(self.parties))
        # A file does not preserve the order, which is that of the protocol.
        if {*self.parties} == {*expected}:
            object.__setattr__(self, "parties", {n: self.parties[n] for n in expected})
        else:
            raise UsageError(
                f"[parties] are {', '.join(self.parties) or 'none'}; {self.made.name!r} wants "
                f"{', '.join(expected)}"
            )
        if len(expected) < 2:
            raise UsageError("[parties] contains one party; a federation needs two or more")
        if len({*self.parties.values()}) < len(self.parties):
            raise UsageError(f"[parties] share a site: {', '.join(self.parties.values())}")

    def _check_open(self) -> None:
        """Refuse protocols that need an ideal functionality or messages between parties.

        Between machines there is no ideal functionality, and only the coordinator has lines to the
        parties.
        """
        without_site = {r for n, r in self.agreement.roles.items() if n not in self.parties}
        if without_site - {SERVER}:
            raise UsageError(
                f"{self.made.name!r} cannot run between machines: its parties send "
                f"requests to {', '.join(without_site)}, and only a coordinator is "
                "connected to other parties"
            )
        if self.made.info.peer_to_peer:
            raise UsageError(
                f"{self.made.name!r} cannot run between machines: its parties send "
                "messages to each other, and only a coordinator is connected to other "
                "parties"
            )
        # A parameter with the value "ideal" selects a simulation of the cryptography.
        parts: tuple[Any, ...] = (self.made, *self.composed.parts)
        for part in parts:
            ideal = [f.name for f in fields(part) if getattr(part, f.name) == "ideal"]
            if ideal:
                raise UsageError(
                    f"{part.name}[{ideal[0]}=ideal] is for simulations, because there is "
                    f"no trusted party between machines; write {ideal[0]}=real"
                )
        sums = self.made.summed_types or self.composed.summed_types
        if sums and self.composed.secure_aggregation() is None:
            raise UsageError(
                f"sums of {self.made.name!r} would need a trusted party, which does not "
                "exist between machines; add defense = 'masking' or 'paillier'"
            )

    @cached_property
    def made(self) -> Protocol:
        """The protocol."""
        specs = parse_grid(self.protocol)
        if len(specs) != 1:
            raise UsageError(f"protocol = {self.protocol!r}: a federation has one")
        protocol: Protocol = register.make("protocol", specs[0])
        return protocol

    @cached_property
    def composed(self) -> Composition:
        """The defenses."""
        compositions = parse_composed([self.defense])
        if len(compositions) != 1:
            raise UsageError(f"defense = {self.defense!r}: a federation has one; compose with +")
        return make_defense(compositions[0])

    @cached_property
    def agreement(self) -> Agreement:
        """The public facts that the hosts know."""
        return make_agreement(self.made, self.schema, self.composed, len(self.parties))

    @property
    def coordinator(self) -> str:
        """The party that drives the training: the server, or the first party with rows."""
        return SERVER if SERVER in self.agreement.roles else next(iter(self.parties))

    @property
    def answering(self) -> list[str]:
        """The parties that the coordinator reaches by lines, in order."""
        return [name for name in self.parties if name != self.coordinator]

    @property
    def patience(self) -> float:
        """Seconds to wait for an answer, or for a sign of life of the coordinator."""
        return 0.9 * self.round_timeout

    def party(self, site: str) -> str | None:
        """Return the party of a site, None if the site does not take part."""
        return next((name for name, other in self.parties.items() if other == site), None)

    def site(self, party: str) -> str:
        """Return the site of a party."""
        return self.parties.get(party, SERVER)

    def plain(self) -> dict[str, Any]:
        """Return the agreement as plain JSON types, from which `read` creates it again."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "schema"}
        columns = [f.to_json() | {"complete": f.complete} for f in self.schema.features]
        schema = {"target": self.schema.target, "classes": list(self.schema.classes)}
        return {**values, **schema, "parties": dict(self.parties), "columns": columns}

    @property
    def hash(self) -> str:
        """The hash that a party allows: 128 bits of the SHA-256 of `plain`, in hexadecimal."""
        # Sorted keys and fixed separators make the text, and therefore the hash, unique.
        text = json.dumps(self.plain(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


_COLUMN = {f.name for f in fields(Feature)}
_KNOWN = {f.name for f in fields(FederationAgreement)} - {"schema"} | {
    "target",
    "classes",
    "columns",
}
_NEEDED = ("name", "protocol", "parties", "target", "columns")


def read(document: Mapping[str, Any], where: str = "federation") -> FederationAgreement:
    """Create a federation from the values of its file, or of the job that contains them.

    Integers among the names of classes and categories are converted to text. No other value is
    converted.

    Parameters
    ----------
    document : mapping
        The values.
    where : str
        Name of the file, for error messages.

    Raises
    ------
    UsageError
        If a key is unknown or missing, or if a value has a wrong type or is out of its range.
    """
    if not isinstance(document, Mapping):
        raise UsageError(f"{where}: {short(document)!r} is no table of values")
    values = dict(document)
    for key in (k for k in values if k not in _KNOWN):
        raise UsageError(f"{where}: unknown key {key!r}{did_you_mean(key, _KNOWN)}")
    for key in (k for k in _NEEDED if k not in values):
        raise UsageError(f"{where}: {key!r} is missing")
    if "installation" not in values:
        raise UsageError(
            f'{where}: all parties run one source: add installation = "{code_digest()}"'
        )
    try:
        features = _features(values.pop("columns"))
        classes = _labels("classes", values.pop("classes", ("0", "1")))
        if len(classes) == 1:
            raise UsageError(
                f"classes = {list(classes)}: give two classes or more, or none for a number"
            )
        target = check_text("target", values.pop("target"))
        if target in (f.name for f in features):
            raise UsageError(
                f"target = {target!r} is one of the columns; remove it from [[columns]]"
            )
        return FederationAgreement(schema=Schema(features, target, classes), **values)
    except (UsageError, DataError, TypeError, AttributeError) as err:
        raise UsageError(f"{where}: {err}") from err


def check_text(key: str, value: object) -> str:
    """Return a value if it is non-empty text that can be printed on one line.

    Raises
    ------
    UsageError
        With the key and the value.
    """
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise UsageError(f"{key} = {short(value)!r}: give text on one line")
    return value


def check_number(key: str, value: object, low: float, high: float) -> float:
    """Return a value if it is a finite number from `low` to `high`. NaN is outside every range.

    Parameters
    ----------
    key : str
        Name of the value in an error message.
    value : object
        The value.
    low, high : float
        Ends of the range, which belong to it.

    Raises
    ------
    UsageError
        With the key, the value and the range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise UsageError(f"{key} = {short(value)!r}: give a number from {low:g} to {high:g}")
    return value


def _labels(key: str, values: object) -> tuple[str, ...]:
    """Return names of classes or categories. Integers are converted to their digits."""
    if not isinstance(values, (list, tuple)):
        raise UsageError(f"{key} = {short(values)!r}: give a list of texts")
    names = [str(v) if type(v) is int else check_text(key, v) for v in values]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{key} names {short(twice[0])!r} twice; give each name once")
    return tuple(names)


def _features(columns: object) -> tuple[Feature, ...]:
    """Return the columns of a file."""
    if not isinstance(columns, (list, tuple)) or not columns:
        raise UsageError(f"columns = {short(columns)!r}: write one [[columns]] or more")
    return tuple(map(_feature, columns))


def _feature(column: object) -> Feature:
    """Return one column of a file."""
    if not isinstance(column, Mapping):
        raise UsageError(f"columns has {short(column)!r}: write [[columns]] with a name")
    name = check_text("name of a column", column.get("name"))
    of = f"column {short(name)!r}"
    for key in (k for k in column if k not in _COLUMN):
        raise UsageError(f"unknown key {key!r} of {of}{did_you_mean(key, _COLUMN)}")
    values = {key: value for key, value in column.items() if value is not None}
    check_known(f"kind of {of}", values.get("kind", "continuous"), get_args(Kind))
    for key in ("low", "high"):
        if key in values:
            check_number(f"{key} of {of}", values[key], -MOST_VALUE, MOST_VALUE)
    if type(values.get("complete", False)) is not bool:
        raise UsageError(f"complete of {of} = {short(values['complete'])!r}: give true or false")
    cuts = values.get("cuts", ())
    if not isinstance(cuts, (list, tuple)):
        raise UsageError(f"cuts of {of} = {short(cuts)!r}: give a list of numbers")
    values["cuts"] = tuple(
        float(check_number(f"cuts of {of}", cut, -MOST_VALUE, MOST_VALUE)) for cut in cuts
    )
    values["categories"] = _labels(f"categories of {of}", values.get("categories", ()))
    if values["categories"]:
        values["kind"] = "categorical"
    return Feature(**values)


def load(path: str | Path) -> FederationAgreement:
    """Read a federation from its file. Raises `UsageError`."""
    try:
        values = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror or err}; give the federation's file") from err
    # Invalid TOML or UTF-8, too many digits, or nested too deep.
    except (ValueError, RecursionError) as err:
        raise UsageError(f"{path}: no TOML file ({short(err, 200)})") from err
    return read(values, str(path))


def written(federation: FederationAgreement) -> str:
    """Return the text of a federation's file."""
    values = federation.plain()
    columns, parties = values.pop("columns"), values.pop("parties")
    lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    lines += ["", "[parties]  # of the protocol, and their sites", *_pairs(parties)]
    for column in columns:
        declared = {k: v for k, v in column.items() if v is not None and v is not False and v != []}
        lines += ["", "[[columns]]", *_pairs(declared)]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    """Return lines ``key = value``."""
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


FILE = "agreements.jsonl"
_BYTE = 0  # byte of the folder's lock file
_WHOLE_RUN = ("record", "cuts")  # units of an epsilon that covers all releases of a run


def records_of(folder: Path) -> list[dict[str, str]]:
    """Return one record per run in which a site took part, in order.

    `folder` contains the logs of the site. Raises `UsageError` if the file is damaged, because a
    site that cannot count its runs must refuse.
    """
    path = folder / FILE
    try:
        lines = path.read_text("utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        if not all(isinstance(r, dict) and isinstance(r["federation"], str) for r in records):
            raise ValueError("a line is no record of a run")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError) as err:
        raise UsageError(
            f"{path} cannot be read ({err}); put it back, because it counts the runs on your rows"
        ) from err
    return records


def runs_of(records: Iterable[dict[str, str]], agreement: str) -> list[dict[str, str]]:
    """Return the records of the runs of one federation."""
    return [record for record in records if record["federation"] == agreement]


def begin_run(folder: Path, federation: FederationAgreement, allowed: int) -> int | None:
    """Count a run that is about to begin.

    Parameters
    ----------
    folder : Path
        Folder of the site's logs.
    federation : FederationAgreement
        The agreement of the parties.
    allowed : int
        Number of runs of it that the owner of the site allows.

    Returns
    -------
    number : int or None
        The number of this run, counted from 1. None if all allowed runs took place.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The lock makes reading and appending one step, so that two jobs cannot both use the last run.
    with locked(folder, _BYTE):
        number = len(runs_of(records_of(folder), federation.hash)) + 1
        if number > allowed:
            return None
        record = {
            "federation": federation.hash,
            "name": federation.name,
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "claimed": join([federation.made.claim_with(federation.composed),
                             *federation.composed.claims()]),
        }  # fmt: skip
        append_private(folder / FILE, f"{json.dumps(record)}\n")
        return number


def keep_records(old: Path, new: Path) -> None:
    """Copy the records of a site to its new folder, so that no run is lost from the count."""
    if old.resolve() == new.resolve():
        return
    present = records_of(new)
    moved = [record for record in records_of(old) if record not in present]
    if moved:
        new.mkdir(mode=0o700, parents=True, exist_ok=True)
        append_private(new / FILE, "".join(f"{json.dumps(record)}\n" for record in moved))


def total_epsilon(records: Iterable[dict[str, str]]) -> float:
    """Return the sum of the epsilons of runs, for one row in all of them.

    It is infinite if a run claims no differential privacy, or claims it for a single release only
    (``unit=histogram``), because the number of releases depends on the run.

    Examples
    --------
    >>> total_epsilon([{"claimed": "pure-dp[epsilon=2]"}, {"claimed": "pure-dp[epsilon=0.5]"}])
    2.5
    >>> total_epsilon([{"claimed": "computational"}])
    inf
    """
    return sum((_epsilon(parse(record["claimed"])) for record in records), 0.0)


def _epsilon(claims: Iterable[Guarantee]) -> float:
    """Return the epsilon of one run."""
    private = [g for g in claims if isinstance(g, PureDP | ApproximateDP)]
    if not any(g.unit == "record" for g in private):
        return math.inf
    covered = all(g.unit in _WHOLE_RUN for g in private)
    return sum(g.epsilon for g in private) if covered else math.inf


def summary(records: list[dict[str, str]], agreement: str, allowed: int) -> str:
    """Return a sentence for the owner with the number of runs and their total epsilon.

    Parameters
    ----------
    records : list of dict
        Records of all runs of the site.
    agreement : str
        Hash of a federation.
    allowed : int
        Number of runs of this federation that the owner allows.
    """
    runs = runs_of(records, agreement)
    return (
        f"runs of {agreement}: {len(runs)} of {allowed} allowed, {_in_words(total_epsilon(runs))}; "
        f"all {len(records)} runs of this site: {_in_words(total_epsilon(records))}"
    )


def _in_words(epsilon: float) -> str:
    """Return a total epsilon in words."""
    finite = math.isfinite(epsilon)
    return f"total epsilon {epsilon:g}" if finite else "total epsilon not bounded by the claims"
