"""What the parties of a federation agree on: one file, and the hash that each of them allows."""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from fedtrees.bench.cells import code_digest
from fedtrees.bench.evaluate import make_defense
from fedtrees.core.composition import Composition
from fedtrees.core.errors import UsageError, check_known, did_you_mean
from fedtrees.core.host import Agreement
from fedtrees.core.registry import register
from fedtrees.core.schema import Feature, Schema
from fedtrees.core.specs import parse_composed, parse_grid
from fedtrees.core.streams import NoiseFrom
from fedtrees.protocols.base import Protocol
from fedtrees.protocols.training import agreed

#: Who coordinates and holds nothing, and where: the engine calls it so, too.
SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Agreed:
    """A federation as its parties agree on it.

    Raises `UsageError` if it cannot be run so between machines.

    `protocol, defense`: As on the command line.
    `installation`: Digest of the source of this package that every party runs; where it lacks, it
    is told.
    `parties`: Site of every party that holds data, by the name that the protocol has for it, in
    order.
    `seed`: Of draws that hide nothing; it is public.
    `noise_from`: {"system", "seed"}. ``seed``, for tests: whoever reads this file draws all noise
    again.
    `round_timeout`: Seconds by which all know of a party that does not answer (`patience`).
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
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", str(self.name)):
            raise UsageError(f"name = {self.name!r}: give letters, digits and hyphens")
        check_known("noise_from", self.noise_from, get_args(NoiseFrom))
        seconds = self.round_timeout
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
            raise UsageError(f"round_timeout = {seconds!r}: give seconds above 0")
        expected = self.made.holder_names(len(self.parties))
        if {*self.parties} == {*expected}:  # in the protocol's order, as no file keeps it
            object.__setattr__(self, "parties", {n: self.parties[n] for n in expected})
        else:
            raise UsageError(
                f"[parties] are {', '.join(self.parties) or 'none'}; {self.made.name!r} wants "
                f"{', '.join(expected)}"
            )
        if len(expected) < 2:
            raise UsageError("[parties] has one alone; a federation needs two or more")
        if len({*self.parties.values()}) < len(self.parties):
            raise UsageError(f"[parties] share a site: {', '.join(self.parties.values())}")
        self._check_open()
        self.made.check(self.schema)
        _ = self.agreement

    def _check_open(self) -> None:
        """Refuse what between machines would cross open, or not at all."""
        others = {r for n, r in self.agreement.roles.items() if n not in self.parties}
        if others - {SERVER}:
            raise UsageError(
                f"{self.made.name!r} is not run between machines: its parties ask "
                f"{', '.join(others)}, and only a coordinator has lines to others"
            )
        if self.made.peers:
            raise UsageError(
                f"{self.made.name!r} is not run between machines: its parties speak to one "
                "another, and only a coordinator has lines to others"
            )
        for part in (self.made, *self.composed.parts):
            ideal = [f.name for f in fields(part) if getattr(part, f.name) == "ideal"]
            if ideal:
                raise UsageError(
                    f"{part.name}[{ideal[0]}=ideal] is for simulations: between machines nobody is "
                    f"the ideal functionality; write {ideal[0]}=real"
                )
        sums = self.made.summed or any("summed" in p.acts_through for p in self.composed.parts)
        if sums and self.composed.aggregation() is None:
            raise UsageError(
                f"sums of {self.made.name!r} would be an ideal functionality's, which nobody is "
                "between machines; add defense = 'masking' or 'paillier'"
            )

    @cached_property
    def made(self) -> Protocol:
        """The protocol."""
        found = parse_grid(self.protocol)
        if len(found) != 1:
            raise UsageError(f"protocol = {self.protocol!r}: a federation has one")
        protocol: Protocol = register.make("protocol", found[0])
        return protocol

    @cached_property
    def composed(self) -> Composition:
        """The defense."""
        found = parse_composed([self.defense])
        if len(found) != 1:
            raise UsageError(f"defense = {self.defense!r}: a federation has one; compose with +")
        return make_defense(found[0])

    @cached_property
    def agreement(self) -> Agreement:
        """What hosts know."""
        return agreed(self.made, self.schema, self.composed, len(self.parties))

    @property
    def coordinator(self) -> str:
        """The party that drives: the server, or the first that holds data."""
        return SERVER if SERVER in self.agreement.roles else next(iter(self.parties))

    @property
    def answering(self) -> list[str]:
        """The parties that the coordinator reaches by lines, in order."""
        return [name for name in self.parties if name != self.coordinator]

    @property
    def patience(self) -> float:
        """Seconds that an answer, or a sign of the coordinator, is waited for."""
        return 0.9 * self.round_timeout

    def party(self, site: str) -> str | None:
        """Return the party whose site it is, None if it has no part."""
        return next((name for name, other in self.parties.items() if other == site), None)

    def site(self, party: str) -> str:
        """Return where a party is."""
        return self.parties.get(party, SERVER)

    def plain(self) -> dict[str, Any]:
        """Return it as plain JSON types, from which `read` makes it again."""
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "schema"}
        columns = [f.to_json() | {"complete": f.complete} for f in self.schema.features]
        schema = {"target": self.schema.target, "classes": list(self.schema.classes)}
        return {**said, **schema, "parties": dict(self.parties), "columns": columns}

    @property
    def hash(self) -> str:
        """What a party allows: 128 bits of SHA-256 of everything above, as hexadecimal digits."""
        text = json.dumps(self.plain(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]


_COLUMN = {f.name for f in fields(Feature)}
_KNOWN = {f.name for f in fields(Agreed)} - {"schema"} | {"target", "classes", "columns"}
_NEEDED = ("name", "protocol", "parties", "target", "columns")


def read(given: Mapping[str, Any], where: str = "federation") -> Agreed:
    """Make a federation of plain values.

    Raises `UsageError` if one is unknown, missing or wrong.
    """
    said = dict(given)
    for key in (k for k in said if k not in _KNOWN):
        raise UsageError(f"{where}: unknown key {key!r}{did_you_mean(key, _KNOWN)}")
    for key in (k for k in _NEEDED if k not in said):
        raise UsageError(f"{where}: {key!r} is missing")
    if "installation" not in said:
        raise UsageError(
            f'{where}: all parties run one source: add installation = "{code_digest()}"'
        )
    try:
        features = tuple(_feature(column, where) for column in said.pop("columns"))
        classes = tuple(map(str, said.pop("classes", ("0", "1"))))
        return Agreed(schema=Schema(features, str(said.pop("target")), classes), **said)
    except (TypeError, AttributeError) as err:
        raise UsageError(f"{where}: {err}") from err


def _feature(column: Mapping[str, Any], where: str) -> Feature:
    for key in (k for k in column if k not in _COLUMN):
        of = f"column {column.get('name', '')!r}"
        raise UsageError(f"{where}: unknown key {key!r} of {of}{did_you_mean(key, _COLUMN)}")
    told = dict(column)
    for name, kind in (("categories", str), ("cuts", float)):
        told[name] = tuple(map(kind, told.get(name, ())))
    if told["categories"]:
        told["kind"] = "categorical"
    return Feature(**told)


def load(path: str | Path) -> Agreed:
    """Read a federation from its file; raises `UsageError`."""
    try:
        said = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as err:
        raise UsageError(f"{path}: {err.strerror or err}; give the federation's file") from err
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as err:
        raise UsageError(f"{path}: no TOML file ({err})") from err
    return read(said, str(path))


def written(federation: Agreed) -> str:
    """Return the text of a federation's file."""
    said = federation.plain()
    columns, parties = said.pop("columns"), said.pop("parties")
    lines = [f"{key} = {json.dumps(value)}" for key, value in said.items()]
    lines += ["", "[parties]  # of the protocol, and their sites", *_pairs(parties)]
    for column in columns:
        told = {k: v for k, v in column.items() if v is not None and v is not False and v != []}
        lines += ["", "[[columns]]", *_pairs(told)]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]
