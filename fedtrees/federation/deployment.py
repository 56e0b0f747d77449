"""NVFlare deployments: start one on this machine, or use a running one, and run jobs."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedtrees.core.errors import ProtocolError, UsageError
from fedtrees.core.files import copy_private, make_private, opens_private, write_private
from fedtrees.federation.agreement import SERVER, FederationAgreement

SETTINGS = "site.toml"
#: Key under which the owner of a job finds the progress lines of its coordinator.
SAID = "fedtrees"
ADMIN = "owner@example.org"
_SERVER_HOST = "localhost"
_ALLOWED = "fedtrees.federation.flare"
_RUNTIME = "nvflare.collab.runtime"  # the module of NVFlare that calls these classes
_STARTING = 60.0  # smallest number of seconds for a server to begin a job
_STOPPING = 5.0  # seconds for a server to answer before a job is abandoned
_PRIVATE = 0o077  # umask of NVFlare's processes, which write keys, logs and models
_RUNNING = ("SUBMITTED", "APPROVED", "DISPATCHED", "RUNNING")


def allow_classes(kit: Path) -> None:
    """Add this package's classes to the allow list of a startup kit, and disable log streaming.

    By default, NVFlare sends the logs of a site to the server.
    """
    local = kit / "local"
    source = local / "resources.json"
    source = source if source.is_file() else local / "resources.json.default"
    try:
        resources = json.loads(source.read_text())
        listed = resources.setdefault("class_allow_list", [])
        listed += [path for path in (_ALLOWED, _RUNTIME) if path not in listed]
        resources["allow_log_streaming"] = False
        _keep_inside(resources, kit)
        write_private(local / "resources.json", json.dumps(resources, indent=1))
    except (OSError, ValueError, LookupError, AttributeError) as err:
        raise UsageError(f"{kit} is no startup kit of NVFlare ({err})") from err


def _keep_inside(resources: dict[str, Any], kit: Path) -> None:
    """Let a server store its jobs, with logs and models, in its kit.

    The default is a folder in /tmp.
    """
    store = kit.resolve() / "store"
    arguments = [component.get("args", {}) for component in resources.get("components", ())]
    if "snapshot_persistor" in resources:
        arguments.append(resources["snapshot_persistor"]["args"]["storage"]["args"])
    for args in arguments:
        for name in ("uri_root", "root_dir"):
            if str(args.get(name, "")).startswith("/tmp/"):
                store.mkdir(mode=0o700, exist_ok=True)
                args[name] = str(store / Path(args[name]).name)


def user_of(kit: Path) -> str:
    """Return the user of a startup kit. Raises `UsageError` if it is not a user's kit."""
    try:
        return str(
            json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
        )
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise UsageError(
            f"{kit} is no startup kit of a user of NVFlare: give the folder that has startup/"
            "fed_admin.json"
        ) from err


def job_of(federation: FederationAgreement, folder: Path) -> Path:
    """Write a job. It contains names and the agreement, but no code and no path of a table."""
    agreement = json.dumps(federation.plain(), sort_keys=True)
    options = {"max_call_threads": 2 * len(federation.parties) + 8}
    server = {
        "format_version": 2,
        "components": [
            {"id": "_server", "path": f"{_ALLOWED}.Coordinator", "args": {"federation": agreement}},
            {"id": SAID, "path": f"{_ALLOWED}.Progress", "args": {}},
        ],
        "workflows": [
            {
                "id": "controller",
                "path": f"{_RUNTIME}.controller.CollabController",
                "args": {"server_obj_id": "_server", "collab_obj_ids": [], **options},
            }
        ],
    }
    executor = {
        "path": f"{_RUNTIME}.executor.CollabExecutor",
        "args": {"client_obj_id": "_client", "collab_obj_ids": [], **options},
    }
    client = {
        "format_version": 2,
        "components": [{"id": "_client", "path": f"{_ALLOWED}.FlareSite", "args": {}}],
        "executors": [{"tasks": ["*"], "executor": executor}],
    }
    sites = [*federation.parties.values()]
    meta = {
        "name": federation.name,
        "resource_spec": {},
        "min_clients": len(sites),
        "mandatory_clients": sites,
        "deploy_map": {"at_server": [SERVER], "at_site": sites},
    }
    job = folder / federation.name
    for app, name, config in (
        ("at_server", "config_fed_server.json", server),
        ("at_site", "config_fed_client.json", client),
    ):
        make_private(job / app / "config", inside=folder)
        write_private(job / app / "config" / name, json.dumps(config, indent=1))
    write_private(job / "meta.json", json.dumps(meta, indent=1))
    return job


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that are not in use."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def provision(federation: FederationAgreement, folder: Path) -> Path:
    """Create certificates and startup kits of a deployment on this machine.

    Return the folder with the kits.
    """
    learn, admin = free_ports(2)
    builders = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder",
                "signature.SignatureBuilder")  # fmt: skip
    arguments = {"static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"}}
    server = {"type": "server", "fed_learn_port": learn, "admin_port": admin}
    project = {
        "api_version": 3,
        "name": "fedtrees",
        "description": "fedtrees",
        "participants": [
            {"name": _SERVER_HOST, "org": "owner", **server},
            *({"name": s, "type": "client", "org": "site"} for s in federation.parties.values()),
            {"name": ADMIN, "type": "admin", "org": "owner", "role": "project_admin"},
        ],
        "builders": [
            {"path": f"nvflare.lighter.impl.{name}", "args": arguments.get(name, {})}
            for name in builders
        ],
    }
    file = folder / "project.yml"
    write_private(file, json.dumps(project))  # JSON is YAML
    command = [
        sys.executable,
        "-m",
        "nvflare.lighter.provision",
        "-p",
        str(file),
        "-w",
        str(folder),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env=_environment(), umask=_PRIVATE
    )
    kits = folder / "fedtrees" / "prod_00"
    if done.returncode or not kits.is_dir():
        raise ProtocolError(f"NVFlare made no deployment: {(done.stdout + done.stderr)[-400:]}")
    for kit in kits.iterdir():
        if (kit / "local" / "resources.json.default").is_file() and kit.name != ADMIN:
            allow_classes(kit)
    return kits


def _environment() -> dict[str, str]:
    """Return the environment of the processes of a deployment, with one thread per library."""
    one = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**one, **os.environ, "GRPC_VERBOSITY": "ERROR", "PYTHONUNBUFFERED": "1"}


@contextmanager
def started(federation: FederationAgreement, sites: Path, folder: Path) -> Iterator[Path]:
    """Start a deployment on this machine and end it afterwards.

    Yields the startup kit of its admin.

    Parameters
    ----------
    federation : FederationAgreement
        The agreement.
    sites : Path
        Folder with the settings of each site, ``SITE.toml``.
    folder : Path
        Folder for the deployment.
    """
    kits = provision(federation, folder.resolve())
    begun: list[subprocess.Popen[bytes]] = []
    try:
        begun.append(_start(kits / _SERVER_HOST, server=True))
        _wait_for(kits / _SERVER_HOST, begun[0])
        for site in federation.parties.values():
            settings = sites / f"{site}.toml"
            if settings.is_file():
                shutil.copy(settings, kits / site / "local" / SETTINGS)
            begun.append(_start(kits / site, server=False))
        yield kits / ADMIN
    finally:
        end(begun)


def _start(kit: Path, *, server: bool) -> subprocess.Popen[bytes]:
    """Start the server or a site from its startup kit."""
    side = "server" if server else "client"
    identity = ["org=owner"] if server else [f"uid={kit.name}", "org=site"]
    command = [
        sys.executable, "-u", "-m", f"nvflare.private.fed.app.{side}.{side}_train", "-m", str(kit),
        "-s", f"fed_{side}.json", "--set", "secure_train=true", *identity, "config_folder=config",
    ]  # fmt: skip
    (kit / "transfer").mkdir(mode=0o700, exist_ok=True)
    with open(kit / "output.txt", "ab", opener=opens_private) as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=_environment(),
            start_new_session=True, cwd=kit, umask=_PRIVATE,
        )  # fmt: skip


def _wait_for(kit: Path, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Wait until the port of a server accepts connections."""
    configuration = json.loads((kit / "startup" / "fed_server.json").read_text())
    _, _, port = configuration["servers"][0]["service"]["target"].rpartition(":")
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
            return
        time.sleep(0.2)
    raise ProtocolError(
        f"NVFlare's server does not start; {kit / 'output.txt'} contains the reason"
    )


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes with all of their descendants, which are in the session of the process."""
    # First ask the processes to end, then kill them.
    for signum, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
        until = time.monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


class _Heard(threading.Thread):
    """Polls a server for the status of a job and the progress lines of its coordinator.

    It is a thread, because the calls of NVFlare may hang.
    """

    def __init__(self, session: Any, job_id: str) -> None:
        super().__init__(daemon=True)
        self._session, self._left = session, threading.Event()
        self.job_id, self.status, self.said = job_id, "SUBMITTED", list[str]()
        self._at, self._begun = time.monotonic(), False

    def run(self) -> None:
        """Poll every second until the job is over."""
        while self.status in _RUNNING and not self._left.wait(1.0):
            with suppress(Exception):  # errors of NVFlare: the server counts as silent
                self.status = str(self._session.get_job_status(self.job_id)).upper()
                reply = self._session.show_stats(self.job_id, SERVER)
                # Statistics of the process of the job, empty if it hangs.
                stats = reply.get(SERVER) or {}
                self._begun |= bool(stats)
                self.said = stats.get(SAID, {}).get("said", self.said)
                if stats or self.status != "RUNNING":
                    self._at = time.monotonic()

    def silent(self, seconds: float) -> bool:
        """Return whether the server was silent for this number of seconds."""
        # A server that has not begun needs additional time to start.
        limit = seconds if self._begun else max(seconds, _STARTING)
        return time.monotonic() - self._at > limit

    def abort(self) -> None:
        """End the job if the server can be reached."""
        self._left.set()
        self.join(_STOPPING)
        if not self.is_alive():
            with suppress(Exception):  # errors of NVFlare
                self._session.abort_job(self.job_id)


class Deployment:
    """A running deployment, from the perspective of the owner of a job.

    Raises
    ------
    UsageError
        If `kit` is not the startup kit of a user.
    ProtocolError
        If the deployment cannot be reached.
    """

    def __init__(self, kit: Path) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        user = user_of(kit)
        try:
            self._session: Any = new_secure_session(user, str(kit.resolve()), timeout=30.0)
        except Exception as err:  # any error of NVFlare
            raise ProtocolError(
                f"the deployment of {kit} is not reached ({type(err).__name__}); is its server up?"
            ) from err

    def wait_for(self, sites: list[str], seconds: float) -> None:
        """Wait until all sites are connected.

        Raises `ProtocolError` with the name of a missing site.
        """
        until = time.monotonic() + seconds
        while True:
            connected = {client.name for client in self._session.get_system_info().client_info}
            lacking = [site for site in sites if site not in connected]
            if not lacking:
                return
            if time.monotonic() > until:
                raise ProtocolError(f"site {lacking[0]!r} is not there after {seconds:g} s")
            time.sleep(0.5)

    def run(
        self, job: Path, out: Path, each: Callable[[str, list[str]], None], silent: float = 60.0
    ) -> str:
        """Run a job, download the files of its coordinator, and return how the job ended.

        Only the owner may read the folder and the files in it, because the log of a coordinator
        contains every message.

        Parameters
        ----------
        job : Path
            Folder that `job_of` wrote.
        out : Path
            Folder for log, model and status.
        each : callable
            Receives NVFlare's status of the job and all progress lines of its coordinator so far.
        silent : float
            Seconds without an answer after which the server counts as lost.
        """
        out.chmod(0o700)
        poller = _Heard(self._session, self._session.submit_job(str(job)))
        poller.start()
        try:
            while poller.is_alive() and not poller.silent(silent):
                poller.join(0.2)
                each(poller.status, poller.said)
            if poller.is_alive():
                each("SILENT", [*poller.said, f"the server is lost: silent for {silent:g} s"])
                poller.abort()
                return f"silent for {silent:g} s"
        except KeyboardInterrupt:
            poller.abort()
            raise
        try:
            downloaded = Path(self._session.download_job_result(poller.job_id, str(out)))
        except Exception as err:  # there is no result of a server that was killed
            return f"{poller.status}, no result: {type(err).__name__}"
        for run_files in downloaded.rglob("fedtrees"):
            copy_private(run_files, out)  # NVFlare's archive does not preserve the modes
            break
        shutil.rmtree(downloaded, ignore_errors=True)
        return poller.status

    def close(self) -> None:
        """Close the session."""
        self._session.close()
