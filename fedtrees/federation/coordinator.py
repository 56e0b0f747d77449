"""The coordinator of a federation: asks all whether they agree, trains, publishes. No engine."""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fedtrees.core.codec import encode
from fedtrees.core.errors import DataError, PartyError
from fedtrees.core.host import Host
from fedtrees.core.line import Far, framed, unframed
from fedtrees.core.local_data import Declared
from fedtrees.core.network import LocalNetwork
from fedtrees.core.streams import Streams
from fedtrees.federation.agreed import Agreed
from fedtrees.federation.log import Log, Logged, keep_model, run_folder
from fedtrees.federation.site import Own, refusal
from fedtrees.messages.models import as_message
from fedtrees.protocols.training import agreed_row_counts, create_host, drive

T = TypeVar("T")
#: ``send(party, blob, seconds)`` carries a frame to a party and returns its answer.
Send = Callable[[str, bytes, float], bytes]
_STOPPING = 5.0  # seconds that a party has to hear that a run stopped
_TOGETHER = 0.5  # seconds within which parties that do not answer are named together


class RemoteNetwork(LocalNetwork):
    """The coordinator beside its host, and lines to all others, who are asked at once."""

    def every(self, names: Iterable[str], say: Callable[[Host | Far], T]) -> dict[str, T]:
        """Say something to parties and return what each answers, in order."""
        return at_once([*names], lambda name: say(self._lines[name]))


def at_once(names: list[str], say: Callable[[str], T]) -> dict[str, T]:
    """Say something to all at once; the first that fails is not waited for by the others."""
    if len(names) < 2:
        return {name: say(name) for name in names}
    pool = ThreadPoolExecutor(len(names))
    try:
        found = {name: pool.submit(say, name) for name in names}
        wait(found.values(), return_when=FIRST_EXCEPTION)
        if _failures(found.values()):
            wait(found.values(), _TOGETHER)
            raise _one(_failures(found.values()))
        return {name: future.result() for name, future in found.items()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _failures(futures: Iterable[Future[Any]]) -> list[BaseException]:
    return [err for f in futures if f.done() and (err := f.exception()) is not None]


def _one(failures: list[BaseException]) -> BaseException:
    """Return the failure that is raised: of several parties, one that names them all."""
    if len(failures) > 1 and all(isinstance(err, PartyError) for err in failures):
        return PartyError("; ".join(map(str, failures)))
    return next((err for err in failures if not isinstance(err, PartyError)), failures[0])


def conduct(
    federation: Agreed,
    send: Send,
    out: Path,
    say: Callable[[str], None],
    own: Own | None = None,
    stopped: Callable[[str], None] = lambda why: None,
) -> Path:
    """Run a federation and return the folder with its log, and the model if it is released.

    `own`: What the coordinator itself holds.
    `stopped`: Takes why a run stopped, before the others are told: an engine may end it at once.

    Raises `PartyError` if a party does not take part, fails, or does not answer in time: the run
    stops, all others hear of it, and nothing is published.
    """
    names, key = federation.answering, secrets.token_bytes(16)

    def ask(name: str, header: Mapping[str, Any], body: bytes = b"") -> Mapping[str, Any]:
        told, _ = unframed(send(name, framed(header) + body, federation.patience))
        refusal(name, federation.site(name), told)
        return told

    log: Log | None = None
    beats = Beats(names, send, federation.patience)
    try:
        asks = {"federation": federation.plain(), "hash": federation.hash, "key": key.hex()}
        told = at_once(names, lambda name: ask(name, {"does": "agree", **asks}))
        said = {name: _declared(header["declared"]) for name, header in told.items()}
        if own is not None:
            said = {federation.coordinator: own.declared(key), **said}
        rows = _rows(federation, said)
        say(f"{len(said)} parties agree on {federation.hash}: {rows} rows")
        folder = run_folder(out, federation)
        log = Log(folder, federation, federation.coordinator, rows)
        if own is not None:
            own.begin()
        at_once(names, lambda name: ask(name, {"does": "begin", "rows": rows}))
        beats.start()
        net = _network(federation, send, own, rows, log, say)
        net.declared = {name: one.rows for name, one in said.items()}
        net.weighted = any(one.weighted for one in said.values())
        model, _ = drive(federation.made, net, federation.made.sealing())
        beats.over.set()
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
        stop = framed({"does": "stop", "why": why[:200]})
        at_once(names, lambda name: _tell(partial(send, name, stop, _STOPPING)))
        if log is not None:
            log.close(why)
        raise
    finally:
        beats.over.set()


class Beats(threading.Thread):
    """Lets sites hear that their coordinator is there: who hears nothing for `seconds` stops."""

    def __init__(self, names: list[str], send: Send, seconds: float) -> None:
        super().__init__(daemon=True)
        self._names, self._send, self._seconds = names, send, seconds
        self.over = threading.Event()

    def run(self) -> None:
        """Beat until the run is over."""
        beat = framed({"does": "beat"})
        while not self.over.wait(self._seconds / 4):
            at_once(self._names, lambda n: _tell(partial(self._send, n, beat, self._seconds / 4)))


def why_of(err: BaseException) -> str:
    """Return why a run stopped, for everybody: of what is no `PartyError` only the type."""
    known = isinstance(err, PartyError)
    return str(err) if known else f"the coordinator failed ({type(err).__name__})"


def _rows(federation: Agreed, said: Mapping[str, Declared]) -> int:
    try:
        return agreed_row_counts(federation.made, federation.agreement, said)
    except DataError as err:  # of what was declared alone
        raise PartyError(f"the tables do not match: {err}") from err


def _tell(sending: Callable[[], bytes]) -> None:
    """Say that the run stopped, to who may be gone."""
    try:
        sending()
    except Exception:
        return


def _declared(said: Mapping[str, Any]) -> Declared:
    columns = tuple(map(int, said["columns"]))
    return Declared(
        int(said["rows"]), columns, bool(said["labels"]), bool(said["weighted"]),
        bytes.fromhex(said["order"]),
    )  # fmt: skip


def _network(
    federation: Agreed,
    send: Send,
    own: Own | None,
    rows: int,
    log: Log,
    say: Callable[[str], None],
) -> RemoteNetwork:
    made, agreement = federation.made, federation.agreement
    streams = Streams(federation.seed, federation.noise_from)
    transcript = Logged()
    transcript.log = log
    net = RemoteNetwork(agreement, streams, rows, transcript)
    told = time.monotonic()

    def sent(name: str, blob: bytes) -> bytes:
        nonlocal told
        if time.monotonic() - told > 5:
            told = time.monotonic()
            say(f"round {net.transcript.rounds}, {len(net.transcript.deliveries)} crossings")
        return send(name, blob, federation.patience)

    for name in agreement.roles:
        if name == federation.coordinator:
            held = None if own is None else own.held
            seat = Streams(federation.seed, federation.noise_from)
            net.join(
                create_host(made, agreement, name, seat, net.aggregation, held, made.sealing())
            )
        else:
            net.reach(name, Far(name, partial(sent, name)))
    return net
