"""Run attacks in a separate process: the side of the bench, which contains the ground truth."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedtrees.core.claims import Guess
from fedtrees.core.errors import ProtocolError
from fedtrees.core.reasons import FITS, Reason
from fedtrees.core.registry import loaded_plugins, register
from fedtrees.core.repeated import Computed
from fedtrees.core.schema import Table
from fedtrees.core.specs import Spec
from fedtrees.core.view import View
from fedtrees.core.wire import pack, type_name
from fedtrees.isolation import transfer
from fedtrees.isolation.sandbox import closed_memory
from fedtrees.isolation.transfer import MOST_BYTES, AttackFacts, Closed, ValuePipe
from fedtrees.isolation.transfer import AttackError as AttackError

# Environment variables that an interpreter and its libraries need. Variables with paths of rows are
# not passed on.
_KEPT = (
    "PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR", "TZ", "LANG",
    "VIRTUAL_ENV", "XDG_CACHE_HOME", "LD_LIBRARY_PATH",
)  # fmt: skip
_KEPT_PREFIXES = ("LC_", "PYTHON", "NUMBA_", "NPY_", "OMP_", "OPENBLAS_", "MKL_", "BLIS_",
                  "VECLIB_", "NUMEXPR_", "DYLD_")  # fmt: skip
_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS",
)  # fmt: skip
_FORKS = hasattr(os, "fork") and hasattr(socket, "send_fds")
# Exit status of a process that used up its CPU time.
_CPU_TIME_USED = -signal.SIGXCPU if hasattr(signal, "SIGXCPU") else None
_START = "from fedtrees.isolation.child import main; main()"


@dataclass(frozen=True)
class Description:
    """Attacks that a plug-in file registers, and its remaining effects as texts."""

    attacks: tuple[AttackFacts, ...]
    other_plugins: tuple[str, ...]
    did: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """Result of one attack."""

    guess: Guess | None = None  # None if the attack does not apply
    reason: Reason = FITS  # why the attack does not apply
    # wall, cpu: seconds that its `run` took, measured in its process
    wall: float = 0.0
    cpu: float = 0.0
    touched: tuple[str, ...] = ()  # files, sockets and modules that it opened, if it was watched


class AttackProcess:
    """A process for attacks, started when it is first needed and reused afterwards.

    Parameters
    ----------
    forks : bool
        Whether it forks for every view. Otherwise a fresh interpreter is started for each view.
    """

    def __init__(self, forks: bool = _FORKS) -> None:
        self._forks = forks
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._one_at_a_time = threading.Lock()
        self._computed = Computed()

    def run(
        self,
        attack: Spec,
        view: View,
        randomness: tuple[int, ...] | None = None,
        *,
        watch: bool = False,
        anyway: bool = False,
    ) -> Answer:
        """Run an attack on a view.

        Parameters
        ----------
        attack : Spec
            Name and parameters of the attack.
        view : View
            The view.
        randomness : tuple of int, optional
            256 bits, by default a hash of the principals' local data
            (`fedtrees.isolation.transfer.randomness`).
        watch : bool
            Record which files, sockets and modules the attack opens.
        anyway : bool
            Run the attack even if it does not apply.

        Returns
        -------
        answer : Answer

        Raises
        ------
        FedtreesError
            If the attack raised an error. Errors of fedtrees are raised again, and all remaining
            errors as `AttackError`.
        ProtocolError
            If the attack returned no guess, or if its process was killed twice.
        """
        claims = tuple(map(type_name, transfer.scored_claims()))
        more = {"randomness": randomness, "watch": watch, "anyway": anyway, "claims": claims}
        reply = self._ask([attack], view, more)
        try:
            if "inapplicable" in reply:
                return Answer(reason=transfer.read_reason(reply["inapplicable"]))
            guess = transfer.guess_of(reply["guess"])
            wall, cpu = transfer.read_seconds(reply["wall"]), transfer.read_seconds(reply["cpu"])
            return Answer(guess, FITS, wall, cpu, transfer.read_texts(reply["touched"]))
        except (KeyError, TypeError, ValueError) as err:
            raise ProtocolError(f"attack {attack.name!r} answered with {err!r} amiss") from err

    def reasons(self, attacks: Sequence[Spec], view: View) -> list[Reason]:
        """Return, for each attack, whether it applies to a view, and why not.

        Each attack of a plug-in is asked in a separate process, so that it cannot change the
        answers of other attacks.

        Raises
        ------
        FedtreesError
            As in `run`.
        """
        built_in = [a for a in attacks if register.is_ours("attack", a.name)]
        groups = [built_in, *([a] for a in attacks if a not in built_in)]
        answers: dict[Spec, Reason] = {}
        for group in groups:
            answers.update(zip(group, self._reasons(group, view), strict=True))
        return [answers[attack] for attack in attacks]

    def _reasons(self, attacks: Sequence[Spec], view: View) -> list[Reason]:
        """Return the reasons of attacks that are asked in the same process."""
        if not attacks:
            return []
        listed = self._ask(attacks, view, {}).get("reasons")
        if not isinstance(listed, tuple) or len(listed) != len(attacks):
            raise ProtocolError(
                "the attacks gave no reasons; one returned no text from inapplicable"
            )
        return [FITS if reason is None else transfer.read_reason(reason) for reason in listed]

    def make(self, attack: Spec) -> None:
        """Create an attack in the process, and discard it. Raises `FedtreesError` as `run`."""
        self._answered({"attacks": (_spec_values(attack),), "make": True})

    def describe(self, file: str, digest: str, *, bait: bool = False) -> Description:
        """Import a plug-in file in the process and return its registrations.

        Parameters
        ----------
        file, digest : str
            Path and sha256 of the file.
        bait : bool
            Also load the modules of a bench, to observe whether the import changes them.

        Raises
        ------
        FedtreesError
            As in `run`.
        """
        loaded = tuple(plugin for plugin in loaded_plugins() if plugin != (file, digest))
        order = {"attacks": (), "file": (file, digest), "bait": bait, "plugins": loaded}
        reply = self._answered(order)
        try:
            facts = tuple(transfer.facts_of_reply(value) for value in reply["attacks"])
            return Description(
                facts, transfer.read_texts(reply["others"]), transfer.read_texts(reply["did"])
            )
        except (KeyError, TypeError) as err:
            raise ProtocolError(f"plugin {file!r} was described with {err!r} amiss") from err

    def describe_installed(self, name: str) -> AttackFacts:
        """Return the facts of an attack of an installed package."""
        return transfer.facts_of_reply(
            self._answered({"attacks": (), "installed": name}).get("facts")
        )

    def refused(self) -> dict[str, bool]:
        """Try forbidden operations in the process, and return which of them were refused.

        Raises `FedtreesError` as `run`.
        """
        with tempfile.TemporaryDirectory(prefix="fedtrees-") as folder:
            file = os.path.join(folder, "rows")
            Path(file).write_text("rows")
            reply = self._answered({"attacks": (), "probe": {"file": file, "bench": os.getpid()}})
        return {str(name): bool(is_refused) for name, is_refused in reply["refused"].items()}

    def _answered(self, more: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to an order that has no view."""
        order = {"modules": (), **_bounds(more), **more}
        with self._one_at_a_time, closed_memory():
            try:
                reply = self._exchange(order, None, None)
            except Closed as err:
                raise ProtocolError(f"the process of attacks was killed ({err})") from None
        if "failed" in reply:
            raise transfer.read_error(reply)
        return reply

    def end(self) -> None:
        """End the process immediately."""
        process, control = self._process, self._control
        self._process = self._control = None
        if control is not None:
            control.close()
        if process is not None:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL) if self._forks else process.kill()
            process.wait()

    def _ask(self, attacks: Sequence[Spec], view: View, more: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to an order with a view.

        A killed process is started a second time, unless it used up its CPU time. The queries of
        the first attempt are then removed from the log of the oracle.
        """
        order = {
            "attacks": tuple(map(_spec_values, attacks)),
            "modules": transfer.view_modules(view),
            **more,
        }
        order = _bounds(order) | order
        packed = pack(transfer.view_as_value(view))
        if "randomness" in order and order["randomness"] is None:
            order["randomness"] = transfer.randomness(view, attacks[0].name)
        n_queries = 0 if view.oracle is None else len(view.oracle.log)
        with self._one_at_a_time, closed_memory():
            for attempt in (1, 2):
                try:
                    reply = self._exchange(order, packed, view)
                    break
                except Closed as err:
                    used_up = err.status is not None and err.status == _CPU_TIME_USED
                    if attempt == 2 or used_up:
                        why = "used-cpu-time" if used_up else "killed"
                        raise ProtocolError(str(Reason(why, code=str(err)))) from None
                    if view.oracle is not None:
                        del view.oracle.log[n_queries:]
        if "failed" in reply:
            raise transfer.read_error(reply)
        return reply

    def _exchange(
        self, order: Mapping[str, Any], packed: Sequence[Any] | None, view: View | None
    ) -> dict[str, Any]:
        """Send an order and a view. Return the reply, and answer queries before it."""
        done = False
        try:
            channel, ended = self._forked(order) if self._forks else self._afresh()
            try:
                channel.send(order)
                if packed is not None:
                    channel.send_packed(packed)
                computed = self._computed if order["trusted"] else None
                reply = _listen(channel, view, computed)
            except Closed:
                reply = None
            finally:
                channel.close()
            status = ended()
            done = True
        finally:
            if not done:  # it took too long, or the user ended the run
                self.end()
        if reply is None:
            ending = Closed(_manner(status))
            ending.status = status
            raise ending
        return reply

    def _forked(self, order: Mapping[str, Any]) -> tuple[ValuePipe, Any]:
        """Let the process fork for an order.

        Return the channel to the copy, and a function for its status.
        """
        if self._process is None:
            self._start()
        needed = {name: order[name] for name in ("modules", "attacks", "trusted")}
        text = json.dumps(needed).encode() + b"\n"
        near_end, far_end = socket.socketpair()
        with near_end, far_end:
            try:
                self._hand_over(text, far_end)
            except OSError:  # the process ended while it was idle
                self._start()
                self._hand_over(text, far_end)
            channel = ValuePipe(near_end.makefile("rb"), near_end.makefile("wb"))
        return channel, self._status

    def _hand_over(self, text: bytes, child_end: socket.socket) -> None:
        """Send an order with one end of a channel to the process."""
        assert self._control is not None
        sent = socket.send_fds(self._control, [text], [child_end.fileno()])
        self._control.sendall(text[sent:])

    def _status(self) -> int:
        """Return the exit status of the copy, or of the process itself if it ended too."""
        assert self._control is not None
        assert self._process is not None
        text = b""
        while not text.endswith(b"\n"):
            more = b""
            with suppress(OSError):  # the process ended
                more = self._control.recv(64)
            if not more:
                status = self._process.wait()
                self.end()
                return status
            text += more
        return int(text)

    def _start(self) -> None:
        """Start the process."""
        self.end()
        near_end, far_end = socket.socketpair()
        with far_end:
            fd = far_end.fileno()
            self._process = _interpreter(str(fd), pass_fds=(fd,), start_new_session=True)
        self._control = near_end

    def _afresh(self) -> tuple[ValuePipe, Any]:
        """Start an interpreter for one order. Return the channel, and a function for its status."""
        self._process = _interpreter("once", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        reading, writing = self._process.stdout, self._process.stdin
        assert reading is not None
        assert writing is not None
        return ValuePipe(reading, writing), self._process.wait  # type: ignore[arg-type]


def _spec_values(attack: Spec) -> tuple[str, dict[str, Any]]:
    """Return name and parameters of an attack as values."""
    return attack.name, dict(attack.params)


def _interpreter(where: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start an interpreter whose environment contains no paths of rows.

    It does not inherit the options of this interpreter.
    """
    environment = {
        k: v for k, v in os.environ.items() if k in _KEPT or k.startswith(_KEPT_PREFIXES)
    }
    environment = dict.fromkeys(_THREADS, "1") | environment  # as in the processes of the bench
    command = [sys.executable, "-P", "-c", _START, where]
    options = {"stdin": subprocess.DEVNULL, "stdout": sys.__stderr__, **options}
    return subprocess.Popen(command, env=environment, cwd=tempfile.gettempdir(), **options)


def _listen(channel: ValuePipe, view: View | None, computed: Computed | None) -> dict[str, Any]:
    """Return the reply of an attack, after answering its queries and requests to compute.

    `computed` computes functions for built-in attacks. It is None for attacks of plug-ins.
    """
    types = (Table, *transfer.scored_claims())
    if computed is not None:
        types = (*types, *transfer.view_types())
    while True:
        reply = channel.receive(types, MOST_BYTES)
        if not isinstance(reply, dict):
            raise ProtocolError(f"an attack answered with a {type(reply).__name__}")
        if "compute" in reply and computed is not None:
            channel.send(computed.reply(reply))
        elif "ask" in reply and view is not None:
            channel.send(_answers(view, reply["ask"], reply.get("ids")))
        else:
            return reply


def _answers(view: View, X: Any, ids: Any) -> dict[str, Any]:
    """Answer a query with the oracle of this process.

    The attack therefore cannot change the count of queries.
    """
    try:
        if view.oracle is None:
            raise ProtocolError("the threat has no queries; write client[queries=50]")
        return {"answers": np.asarray(view.oracle.query(X, ids))}
    except Exception as err:
        return {"error": str(err)}


def _bounds(order: Mapping[str, Any]) -> dict[str, Any]:
    """Return the permissions of the process for an order, and the plug-in files that it loads.

    Built-in attacks run without the files of other attacks, whose code could change them.
    """
    built_in = [register.is_ours("attack", name) for name, _ in order["attacks"]]
    trusted = all(built_in) and not {"file", "installed"} & set(order)
    return {
        "trusted": trusted,
        "plugins": loaded_plugins(attacks=not trusted),
        "unprotected": register.imports.unprotected,
        "seconds": _seconds_left(),
    }


def _seconds_left() -> float:
    """Return the remaining seconds of a time limit (an alarm of this process), or 0."""
    return signal.getitimer(signal.ITIMER_REAL)[0] if hasattr(signal, "getitimer") else 0.0


def _manner(status: int) -> str:
    """Return in words how a process ended."""
    if status >= 0:
        return f"exit code {status}"
    with suppress(ValueError):
        return f"{signal.Signals(-status).name}({status})"
    return f"signal {-status}"


_shared: dict[int, AttackProcess] = {}


def attack_process() -> AttackProcess:
    """Return the attack process of this process. Both end together."""
    pid = os.getpid()
    if pid not in _shared:  # also needed after a fork, because a pipe must have a single reader
        _shared[pid] = AttackProcess()
        atexit.register(_shared[pid].end)
    return _shared[pid]
