"""Site of a party: its table, its agreement, and its answers to the coordinator.

The module does not depend on the transport. `fedtrees.federation.flare` supplies it with NVFlare.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtrees.core.errors import DataError, FedtreesError, PartyError, UsageError
from fedtrees.core.files import write_whole
from fedtrees.core.local_data import LocalData, LocalDataSummary, check_own
from fedtrees.core.messages import Message
from fedtrees.core.remote import HostServer
from fedtrees.core.schema import Schema
from fedtrees.core.secure_sum import IdealAggregation
from fedtrees.core.source import code_digest
from fedtrees.core.streams import Streams
from fedtrees.core.wire import decode, read_call, write_call
from fedtrees.data.csv_file import Reading, TextTable
from fedtrees.data.csv_table import class_target, numeric, read_features, read_plain
from fedtrees.data.table_files import read_table
from fedtrees.federation import agreement
from fedtrees.federation.agreement import FederationAgreement, check_text, read
from fedtrees.federation.log import Log, keep_model, run_folder
from fedtrees.protocols.compatibility import check_channels
from fedtrees.protocols.training import create_host

#: Codes with which a site may refuse. The texts contain no local data.
REFUSALS = {
    "not-allowed": "its owner has not allowed this federation; `fedtrees federation site --allow` "
    "does",
    "other-version": "it runs another version of fedtrees",
    "other-table": "its table does not match the federation; the log of this site has the details",
    "no-part": "it has no part in this federation",
    "no-settings": "its owner has not configured the path of its table; run `fedtrees federation "
    "site` there",
    "not-asked": "a request did not come from the coordinator, or came out of turn",
    "used-up": "it took part in as many runs as its owner allowed; `fedtrees federation site "
    "--runs` allows more",
}

MOST_RUNS = 1_000_000
_EVERY = 15.0  # seconds between two progress lines


class Refused(Exception):
    """A site does not take part.

    The code is one of `REFUSALS`, and only the owner sees the text.
    """

    def __init__(self, code: str, text: str = "") -> None:
        super().__init__(text or REFUSALS[code])
        self.code = code


@dataclass(frozen=True)
class Settings:
    """Configuration of a site by its owner. The file stays at the site.

    Attributes
    ----------
    csv : str
        Path of the table.
    out : str
        Folder for logs, models and the count of runs.
    allow : tuple of str
        Hashes of the federations in which the site takes part.
    id : str
        Column that names rows, if other parties have more columns of the same rows.
    sep : str
        Separator of the table. Empty: inferred.
    runs : int
        Number of runs of each allowed federation in which the site takes part. Every run draws
        fresh noise on the same rows, so that their epsilons add up.
    decimal, missing, sheet : str, tuple of str, str
        As in `fedtrees.data.csv_file.Reading`. `missing` is empty for the default marks.
    """

    csv: str
    out: str
    allow: tuple[str, ...] = ()
    id: str = ""
    sep: str = ""
    runs: int = 1
    decimal: str = ""
    missing: tuple[str, ...] = ()  # one empty text: only empty cells are missing
    sheet: str = ""

    def __post_init__(self) -> None:
        for key in ("csv", "out", "id", "sep", "decimal", "sheet"):
            value = getattr(self, key)
            if not isinstance(value, str):
                raise UsageError(f"{key} = {value!r}: give text")
        if not isinstance(self.allow, (list, tuple)):
            raise UsageError(f"allow = {self.allow!r}: give a list of hashes")
        object.__setattr__(self, "allow", tuple(check_text("allow", h) for h in self.allow))
        if type(self.runs) is not int or not 1 <= self.runs <= MOST_RUNS:
            raise UsageError(f"runs = {self.runs!r}: give a whole number from 1 to {MOST_RUNS:,}")
        if not isinstance(self.missing, (list, tuple)) or not all(
            isinstance(mark, str) for mark in self.missing
        ):
            raise UsageError(f"missing = {self.missing!r}: give a list of texts")
        object.__setattr__(self, "missing", tuple(self.missing))

    @property
    def reading(self) -> Reading:
        """How the file of the table is read."""
        return Reading(
            separator=self.sep,
            decimal=self.decimal,
            missing=self.missing or None,
            sheet=self.sheet,
        )

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read the settings. Raises `UsageError` if a value is missing, unknown or invalid."""
        try:
            return cls(**tomllib.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError) as err:
            raise UsageError(f"{path}: {err}; write it with `fedtrees federation site`") from err

    def save(self, path: Path) -> None:
        """Write the settings to a file that only the owner may read."""
        text = "".join(f"{k} = {json.dumps(v)}\n" for k, v in asdict(self).items())
        write_whole(path, text.encode(), remedy="give permission", private=True)


@dataclass(frozen=True, eq=False)
class SiteData:
    """The local data of a site.

    Attributes
    ----------
    local_data : LocalData
        Its rows.
    names : bytes
        Names of its rows. Parties with the same key can check that they have the same rows.
    begin : callable
        Counts the run. It is called before the first request on the rows is answered.
    """

    local_data: LocalData
    names: bytes
    begin: Callable[[], None] = lambda: None

    def declared(self, key: bytes) -> LocalDataSummary:
        """Return the declared description of the rows."""
        order = hashlib.blake2b(self.names, key=key, digest_size=16).digest()
        return replace(LocalDataSummary.of(self.local_data), order=order)


def read_site_data(settings: Settings, federation: FederationAgreement, party: str) -> SiteData:
    """Read the table of a site as the federation declares it. Raises `DataError`.

    Parameters
    ----------
    settings : Settings
        Settings of the site.
    federation : FederationAgreement
        The agreement.
    party : str
        Name of the party.
    """
    schema, vertical = federation.schema, federation.made.layout == "vertical"
    columns = {f.name: f.categories for f in schema.features} | {schema.target: schema.classes}
    plain = None if vertical else read_plain(settings.csv, settings.reading, columns, schema.target)
    if plain is not None:
        X, y = plain
        labels = y.astype(np.int64) if schema.classes else y
        local_data = LocalData(np.arange(len(X)), np.arange(X.shape[1]), X, labels)
        names = secrets.token_hex(16)
    else:
        local_data, names = _whatever(settings, schema, vertical)
    _check_ranges(settings.csv, local_data, schema)
    check_own(party, local_data, schema)
    federation.made.check_local_data(party, local_data, schema)
    return SiteData(local_data, names.encode())


def _whatever(settings: Settings, schema: Schema, vertical: bool) -> tuple[LocalData, str]:
    """Read a table of any format. For a vertical run, the rows are sorted by their names.

    Return the rows and the joined names, or a random text in place of the names of a horizontal
    run.
    """
    categories = {f.name: f.categories for f in schema.features} | {schema.target: schema.classes}
    table = read_table(settings.csv, settings.reading, (schema.target,), categories)
    present = [c for c, name in enumerate(schema.names) if name in table.names]
    if vertical and not settings.id:
        raise DataError(
            f"{settings.csv}: other parties have other columns of the same rows; give --id COLUMN"
        )
    if not vertical and len(present) < len(schema.names):
        lacking = [name for name in schema.names if name not in table.names]
        raise DataError(f"{settings.csv} lacks the columns {', '.join(lacking[:8])}")
    X = read_features(table, [schema.features[c] for c in present], np.float32)
    y = _labels(table, schema) if schema.target in table.names else None
    rows, columns = np.arange(len(table)), np.array(present)
    if not vertical:
        return LocalData(rows, columns, X, y), secrets.token_hex(16)
    names = table.column(settings.id)
    if len({*names}) < len(names):
        raise DataError(f"{settings.csv}: {settings.id!r} names a row twice")
    # All parties sort the common rows by name, which aligns them without exchanging the names.
    order = np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.intp)
    local_data = LocalData(rows, columns, X[order], None if y is None else y[order])
    return local_data, "\x1f".join(names[i] for i in order)


def _check_ranges(path: str, local_data: LocalData, schema: Schema) -> None:
    """Raise `DataError` if a value is outside the declared range."""
    for k, c in enumerate(local_data.columns):
        feature = schema.features[c]
        if feature.kind == "categorical" or feature.declared_range is None:
            continue
        low, high = map(np.float32, feature.declared_range)
        if (local_data.X[:, k] < low).any() or (local_data.X[:, k] > high).any():
            raise DataError(
                f"{path}: column {feature.name!r} has values outside of [{low}, {high}], the range "
                "that the federation declares"
            )


def _labels(table: TextTable, schema: Schema) -> NDArray[Any]:
    """Return the labels of a table."""
    if schema.classes:
        return class_target(table, schema.target, schema.classes)[0]
    values = numeric(table, schema.target)
    if np.isnan(values).any():
        raise DataError(f"{table.path}: {schema.target!r} is missing in some rows; remove them")
    return values


class Site:
    """Answers the coordinator: it agrees, answers as its party, and ends.

    The name is that of the site's certificate. The first callable reads the settings of the owner,
    and the second one receives progress lines for the owner.
    """

    def __init__(
        self, name: str, settings: Callable[[], Settings], say: Callable[[str], None]
    ) -> None:
        self.name, self._settings, self._say = name, settings, say
        self.federation: FederationAgreement | None = None
        self._served: HostServer | None = None
        self._log: Log | None = None
        self._site_data: SiteData | None = None
        self._over, self._answered = False, 0
        self._last_report = self._heard = time.monotonic()

    def call(self, caller: str, blob: bytes) -> bytes:
        """Answer a frame of a caller, which the transport has authenticated."""
        try:
            header, body = read_call(blob)
            operation = header.get("does")
            if operation == "agree":
                return write_call(self._agree(caller, header))
            if operation in ("beat", "stop") and (self.federation is None or self._over):
                return write_call(
                    {"refused": "not-asked"}
                )  # late, or of a run that this site refused
            self._check_caller(caller)
            self._heard = time.monotonic()
            if operation == "beat":
                return write_call({"beat": True})
            if operation == "begin":
                return self._begin(header)
            if operation == "end":
                return write_call(self._end(body))
            if operation == "stop":
                return write_call(self._stop(str(header.get("why", ""))[:200]))
            assert self._served is not None
            self._answered += 1
            if time.monotonic() - self._last_report > _EVERY:
                self._last_report = time.monotonic()
                self._say(f"{self._answered} requests so far")
            return self._served.call(blob)
        except Refused as err:
            self._say(f"refused: {err}")
            return write_call({"refused": err.code})
        except Exception as err:  # only the type of an exception may be sent
            self._failed(err)
            return write_call({"error": type(err).__name__})

    def _check_caller(self, caller: str) -> None:
        """Refuse every caller except the coordinator of the present run."""
        federation = self.federation
        if federation is None or self._over or caller != federation.site(federation.coordinator):
            raise Refused("not-asked", f"{caller!r} is not the coordinator, or asks out of turn")

    def agree(self, federation: FederationAgreement, announced_hash: str) -> Settings:
        """Return the settings of a site that takes part. Raises `Refused` if it does not."""
        try:
            settings = self._settings()
        except UsageError as err:
            raise Refused("no-settings", str(err)) from err
        # The site computes the hash itself, so that a coordinator cannot send another agreement
        # under an allowed hash.
        if announced_hash != federation.hash or announced_hash not in settings.allow:
            raise Refused("not-allowed", f"federation {federation.hash} is not among --allow")
        if federation.installation != code_digest():
            text = f"this is fedtrees of digest {code_digest()}, not {federation.installation}"
            raise Refused("other-version", text)
        if federation.party(self.name) is None:
            raise Refused("no-part")
        try:
            records = agreement.records_of(Path(settings.out))
        except UsageError as err:
            raise Refused("no-settings", str(err)) from err
        if len(agreement.runs_of(records, announced_hash)) >= settings.runs:
            raise Refused("used-up", agreement.summary(records, announced_hash, settings.runs))
        return settings

    def own(self, federation: FederationAgreement, settings: Settings) -> SiteData:
        """Read the table of the site. Raises `Refused` if it does not match the federation."""
        party = federation.party(self.name)
        assert party is not None
        try:
            read_data = read_site_data(settings, federation, party)
        except FedtreesError as err:
            raise Refused("other-table", str(err)) from err
        return replace(read_data, begin=partial(self._count, federation, settings))

    def _count(self, federation: FederationAgreement, settings: Settings) -> None:
        """Count a run before it begins.

        Raises `Refused` if another job used up the last allowed run.
        """
        folder = Path(settings.out)
        number = agreement.begin_run(folder, federation, settings.runs)
        records = agreement.records_of(folder)
        self._say(agreement.summary(records, federation.hash, settings.runs))
        if number is None:
            raise Refused("used-up")

    def _agree(self, caller: str, header: Mapping[str, Any]) -> Mapping[str, Any]:
        """Agree to a federation, and reply with the declared description of the rows."""
        if self.federation is not None:
            raise Refused("not-asked", f"{caller!r} asks a second time")
        try:
            federation = read(header["federation"])
        except UsageError as err:
            raise Refused("not-allowed", str(err)) from err
        if caller != federation.site(federation.coordinator):
            raise Refused("not-asked", f"{caller!r} is not the coordinator")
        settings = self.agree(federation, str(header["hash"]))
        self._site_data = self.own(federation, settings)
        self.federation = federation
        self._out = Path(settings.out)
        description = self._site_data.declared(bytes.fromhex(header["key"]))
        return {"declared": asdict(description) | {"order": description.order.hex()}}

    def _begin(self, header: Mapping[str, Any]) -> bytes:
        """Create the party and its log, and count the run."""
        federation, site_data = self.federation, self._site_data
        if federation is None or site_data is None or self._served is not None:
            raise Refused("not-asked")
        party, protocol = federation.party(self.name), federation.made
        assert party is not None
        rows = int(header["rows"])
        check_channels(federation.composed, federation.schema, protocol.parameters, rows)
        site_data.begin()
        self._out = run_folder(self._out, federation)
        self._log = Log(self._out, federation, party, rows)
        streams = Streams(federation.seed, federation.noise_from)
        # The client side of the ideal functionality is not used, because no reply is summed.
        aggregation = federation.composed.secure_aggregation() or IdealAggregation()
        host = create_host(
            protocol,
            federation.agreement,
            party,
            streams,
            aggregation,
            site_data.local_data,
            protocol.encrypted_computation(),
        )
        self._site_data = None  # so that the party can free rows that it no longer needs
        coordinator = federation.coordinator

        def log(message: Message, why: str, sent: bool | None) -> None:
            assert self._log is not None
            sender = coordinator if sent is False else party
            receiver = {None: party, True: coordinator, False: party}[sent]
            self._log.write(message, sender, (receiver,), why)

        self._served = HostServer(host, log, self._failed)
        threading.Thread(target=self._listen, args=(federation.patience,), daemon=True).start()
        self._say(f"{party} takes part in {federation.name}, {federation.hash}; log: {self._out}")
        return write_call({"begun": True})

    def _end(self, body: bytes) -> Mapping[str, Any]:
        """Store the released model, and close the log."""
        assert self.federation is not None
        assert self._log is not None
        if body:
            model = decode(body)
            self._log.published(model, self.federation.coordinator)
            keep_model(self.federation, model, self._out)
        self._over = True
        self._log.close("")
        self._say(f"done; {self._out}")
        return {"ended": True}

    def _stop(self, why: str) -> Mapping[str, Any]:
        """Close the log after a run that stopped."""
        self._over = True
        if self._log is not None:
            self._log.close(why)
        self._say(f"stopped: {why}")
        return {"stopped": True}

    def _listen(self, seconds: float) -> None:
        """Stop if no frame of the coordinator arrived for `seconds`.

        It sends four signs of life in this time.
        """
        while not self._over:
            time.sleep(min(1.0, seconds / 4))
            if not self._over and time.monotonic() - self._heard > seconds:
                self._stop(f"the coordinator is lost: not heard for {seconds:g} s")

    def _failed(self, err: Exception) -> None:
        """Report an error to the owner."""
        self._say(f"failed: {type(err).__name__}: {err}")

    def lost(self) -> None:
        """End a run that was not ended, because the transport closes down."""
        if self._log is not None and not self._over:
            self._stop("the coordinator is gone")


def refusal(party: str, site: str, header: Mapping[str, Any]) -> None:
    """Raise `PartyError` if a site refused or failed.

    Parameters
    ----------
    party, site : str
        Names for the error message.
    header : mapping
        Header of the site's answer.
    """
    if "refused" in header:
        why = REFUSALS.get(str(header["refused"]), "it refused")
        raise PartyError(f"{party!r} at {site!r} does not take part: {why}")
    if "error" in header:
        kind = str(header["error"])[:60]
        raise PartyError(f"{party!r} at {site!r} failed ({kind}); its log contains the reason")
