"""Coordinator of a federation: it checks that all parties agree, trains, and releases the model.

The module does not depend on the transport. `fedtrees.federation.flare` supplies it with NVFlare.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedtrees.core.errors import DataError, PartyError
from fedtrees.core.host import Host
from fedtrees.core.local_data import LocalDataSummary
from fedtrees.core.network import Network
from fedtrees.core.remote import RemoteHost
from fedtrees.core.streams import Streams
from fedtrees.core.wire import encode, read_call, write_call
from fedtrees.federation.agreement import FederationAgreement
from fedtrees.federation.log import Log, Logged, keep_model, run_folder
from fedtrees.federation.site import SiteData, refusal
from fedtrees.messages.models import as_message
from fedtrees.protocols.training import agreed_row_counts, create_host, drive

T = TypeVar("T")
#: ``send(party, blob, seconds)`` sends a frame to a party and returns its answer.
Send = Callable[[str, bytes, float], bytes]
_STOPPING = 5.0  # seconds that a party has to receive the message that a run stopped
_TOGETHER = 0.5  # seconds within which parties that do not answer are named together


class RemoteNetwork(Network):
    """Network of the coordinator's host and of hosts on the machines of all parties.

    The parties are called in parallel.
    """

    def _call_hosts(
        self, names: Iterable[str], call: Callable[[Host | RemoteHost], T]
    ) -> dict[str, T]:
        """Call a function with the host of each party in parallel, and return all results."""
        return at_once([*names], lambda name: call(self._all_hosts[name]))


def at_once(names: list[str], say: Callable[[str], T]) -> dict[str, T]:
    """Call a function for all names in parallel.

    After a failure, the remaining calls are not awaited.
    """
    if len(names) < 2:
        return {name: say(name) for name in names}
    pool = ThreadPoolExecutor(len(names))
    try:
        futures = {name: pool.submit(say, name) for name in names}
        wait(futures.values(), return_when=FIRST_EXCEPTION)
        if _failures(futures.values()):
            wait(futures.values(), _TOGETHER)
            raise _one(_failures(futures.values()))
        return {name: future.result() for name, future in futures.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _failures(futures: Iterable[Future[Any]]) -> list[BaseException]:
    """Return the exceptions of the calls that have ended."""
    return [err for f in futures if f.done() and (err := f.exception()) is not None]


def _one(failures: list[BaseException]) -> BaseException:
    """Return the exception to raise. If several parties are lost, it names all of them."""
    if len(failures) > 1 and all(isinstance(err, PartyError) for err in failures):
        return PartyError("; ".join(map(str, failures)))
    return next((err for err in failures if not isinstance(err, PartyError)), failures[0])


def run_federation(
    federation: FederationAgreement,
    send: Send,
    out: Path,
    say: Callable[[str], None],
    site_data: SiteData | None = None,
    stopped: Callable[[str], None] = lambda why: None,
) -> Path:
    """Run a federation. Return the folder with its log, and with the model if it is released.

    Parameters
    ----------
    federation : FederationAgreement
        The agreement.
    send : callable
        Sends a frame to a party (`Send`).
    out : Path
        Folder for the folder of the run.
    say : callable
        Receives progress lines.
    site_data : SiteData, optional
        Local data of the coordinator.
    stopped : callable
        Receives the reason why a run stopped, before the parties do, because an engine may end the
        run at once.

    Raises
    ------
    PartyError
        If a party does not take part, fails, or does not answer in time. The run stops, all parties
        are informed, and no model is released.
    """
    # The key is secret from outsiders: it makes digests of row names comparable between parties
    # only.
    names, key = federation.answering, secrets.token_bytes(16)

    def ask(name: str, header: Mapping[str, Any], body: bytes = b"") -> Mapping[str, Any]:
        reply_header, _ = read_call(send(name, write_call(header) + body, federation.patience))
        refusal(name, federation.site(name), reply_header)
        return reply_header

    log: Log | None = None
    beats = Heartbeat(names, send, federation.patience)
    try:
        # 1. Every party checks the agreement and declares its rows.
        asks = {"federation": federation.plain(), "hash": federation.hash, "key": key.hex()}
        replies = at_once(names, lambda name: ask(name, {"does": "agree", **asks}))
        declared = {name: _read_declared(header["declared"]) for name, header in replies.items()}
        if site_data is not None:
            declared = {federation.coordinator: site_data.declared(key), **declared}
        rows = _rows(federation, declared)
        say(f"{len(declared)} parties agree on {federation.hash}: {rows} rows")
        folder = run_folder(out, federation)
        log = Log(folder, federation, federation.coordinator, rows)
        if site_data is not None:
            site_data.begin()
        # 2. Every party counts the run and creates its log, before it answers a request on its
        # rows.
        at_once(names, lambda name: ask(name, {"does": "begin", "rows": rows}))
        beats.start()
        # 3. The training is that of a simulation, but messages travel over lines.
        net = _network(federation, send, site_data, declared, log, say)
        model, _ = drive(federation.made, net, federation.made.encrypted_computation())
        beats.over.set()
        # 4. Every party receives the released model, and the run ends.
        released = as_message(model) if federation.made.released else None
        body = b"" if released is None else encode(released)
        at_once(names, lambda name: ask(name, {"does": "end"}, body))
        if released is not None:
            log.published(released, federation.coordinator)
            keep_model(federation, released, folder)
        log.close("", rounds=net.transcript.rounds, costs=net.transcript.costs)
        return folder
    except BaseException as err:
        why = why_of(err)
        stopped(why)
        stop = write_call({"does": "stop", "why": why[:200]})
        # Some parties may be lost, so that errors in sending are ignored.
        at_once(names, lambda name: _tell(partial(send, name, stop, _STOPPING)))
        if log is not None:
            log.close(why)
        raise
    finally:
        beats.over.set()


class Heartbeat(threading.Thread):
    """Sends regular signs of life. A site that receives none for `seconds` stops the run."""

    def __init__(self, names: list[str], send: Send, seconds: float) -> None:
        super().__init__(daemon=True)
        self._names, self._send, self._seconds = names, send, seconds
        self.over = threading.Event()

    def run(self) -> None:
        """Send until the run is over."""
        beat = write_call({"does": "beat"})
        while not self.over.wait(self._seconds / 4):
            at_once(self._names, lambda n: _tell(partial(self._send, n, beat, self._seconds / 4)))


def why_of(err: BaseException) -> str:
    """Return the public reason why a run stopped.

    Of all errors but `PartyError`, it is only the type.
    """
    is_public = isinstance(err, PartyError)
    return str(err) if is_public else f"the coordinator failed ({type(err).__name__})"


def _rows(federation: FederationAgreement, declared: Mapping[str, LocalDataSummary]) -> int:
    """Return the number of rows of all parties, or raise `PartyError`.

    The error is raised if the tables do not match.
    """
    try:
        return agreed_row_counts(federation.made, federation.agreement, declared)
    except DataError as err:  # its text follows from declared values only
        raise PartyError(f"the tables do not match: {err}") from err


def _tell(sending: Callable[[], bytes]) -> None:
    """Send a message to a party that may be lost, and ignore errors."""
    try:
        sending()
    except Exception:
        return


def _read_declared(reply: Mapping[str, Any]) -> LocalDataSummary:
    """Return the declared values of a reply."""
    columns = tuple(map(int, reply["columns"]))
    return LocalDataSummary(
        int(reply["rows"]), columns, bool(reply["labels"]), bool(reply["weighted"]),
        bytes.fromhex(reply["order"]),
    )  # fmt: skip


def _network(
    federation: FederationAgreement,
    send: Send,
    site_data: SiteData | None,
    declared: Mapping[str, LocalDataSummary],
    log: Log,
    say: Callable[[str], None],
) -> RemoteNetwork:
    """Create the network of the coordinator."""
    protocol, agreement = federation.made, federation.agreement
    streams = Streams(federation.seed, federation.noise_from)
    transcript = Logged()
    transcript.log = log
    net = RemoteNetwork(agreement, streams, declared, transcript)
    last_report = time.monotonic()

    # Report progress at most every five seconds.
    def sent(name: str, blob: bytes) -> bytes:
        nonlocal last_report
        if time.monotonic() - last_report > 5:
            last_report = time.monotonic()
            say(f"round {net.transcript.rounds}, {len(net.transcript.deliveries)} crossings")
        return send(name, blob, federation.patience)

    for name in agreement.roles:
        if name == federation.coordinator:
            local_data = None if site_data is None else site_data.local_data
            party_streams = Streams(federation.seed, federation.noise_from)
            net.join(
                create_host(
                    protocol,
                    agreement,
                    name,
                    party_streams,
                    net.aggregation,
                    local_data,
                    protocol.encrypted_computation(),
                )
            )
        else:
            net.join(RemoteHost(name, partial(sent, name)))
    return net
