"""A deployment of NVFlare: made and started on this machine, or one that is there; and its jobs."""

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
from fedtrees.federation.agreed import SERVER, Agreed

SETTINGS = "site.toml"
#: Under what the owner of a job finds what its coordinator says.
SAID = "fedtrees"
ADMIN = "owner@example.org"
_SERVER_HOST = "localhost"
_ALLOWED = "fedtrees.federation.flare"
_RUNTIME = "nvflare.collab.runtime"  # what calls them
_STARTING = 60.0  # seconds that a server has at least to begin with a job
_STOPPING = 5.0  # seconds that a server has to answer before a job is given up
_PRIVATE = 0o077  # umask of NVFlare's processes, which write keys, logs and models
_RUNNING = ("SUBMITTED", "APPROVED", "DISPATCHED", "RUNNING")


def allow_classes(kit: Path) -> None:
    """Let a startup kit run this package's two classes, by the deployment's own allow list.

    Its logs stay where they are: by default NVFlare sends a site's to the server.
    """
    local = kit / "local"
    given = local / "resources.json"
    given = given if given.is_file() else local / "resources.json.default"
    try:
        resources = json.loads(given.read_text())
        listed = resources.setdefault("class_allow_list", [])
        listed += [path for path in (_ALLOWED, _RUNTIME) if path not in listed]
        resources["allow_log_streaming"] = False
        _keep_inside(resources, kit)
        write_private(local / "resources.json", json.dumps(resources, indent=1))
    except (OSError, ValueError, LookupError, AttributeError) as err:
        raise UsageError(f"{kit} is no startup kit of NVFlare ({err})") from err


def _keep_inside(resources: dict[str, Any], kit: Path) -> None:
    """Let a server keep its jobs, with logs and models, in its kit: by default they lie in /tmp."""
    store = kit.resolve() / "store"
    told = [component.get("args", {}) for component in resources.get("components", ())]
    if "snapshot_persistor" in resources:
        told.append(resources["snapshot_persistor"]["args"]["storage"]["args"])
    for args in told:
        for name in ("uri_root", "root_dir"):
            if str(args.get(name, "")).startswith("/tmp/"):
                store.mkdir(mode=0o700, exist_ok=True)
                args[name] = str(store / Path(args[name]).name)


def user_of(kit: Path) -> str:
    """Return whose startup kit it is; raises `UsageError` if it is no user's."""
    try:
        return str(
            json.loads((kit / "startup" / "fed_admin.json").read_text())["admin"]["username"]
        )
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise UsageError(
            f"{kit} is no startup kit of a user of NVFlare: give the folder that has startup/"
            "fed_admin.json"
        ) from err


def job_of(federation: Agreed, folder: Path) -> Path:
    """Write a job: names and what was agreed on; no code, and no path of a table."""
    told = json.dumps(federation.plain(), sort_keys=True)
    options = {"max_call_threads": 2 * len(federation.parties) + 8}
    server = {
        "format_version": 2,
        "components": [
            {"id": "_server", "path": f"{_ALLOWED}.Coordinator", "args": {"federation": told}},
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
    """Return ports of this machine that nobody listens at."""
    found = [socket.socket() for _ in range(count)]
    for one in found:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


def provision(federation: Agreed, folder: Path) -> Path:
    """Make certificates and startup kits of a deployment on this machine; return their folder."""
    learn, admin = free_ports(2)
    builders = ("workspace.WorkspaceBuilder", "static_file.StaticFileBuilder", "cert.CertBuilder",
                "signature.SignatureBuilder")  # fmt: skip
    told = {"static_file.StaticFileBuilder": {"config_folder": "config", "scheme": "grpc"}}
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
            {"path": f"nvflare.lighter.impl.{name}", "args": told.get(name, {})}
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
    one = dict.fromkeys(("OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return {**one, **os.environ, "GRPC_VERBOSITY": "ERROR", "PYTHONUNBUFFERED": "1"}


@contextmanager
def started(federation: Agreed, sites: Path, folder: Path) -> Iterator[Path]:
    """Start a deployment on this machine and end it afterwards; yields the admin's startup kit.

    `sites`: Has what the owner of each site said, ``SITE.toml``.
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
    side = "server" if server else "client"
    own = ["org=owner"] if server else [f"uid={kit.name}", "org=site"]
    command = [
        sys.executable, "-u", "-m", f"nvflare.private.fed.app.{side}.{side}_train", "-m", str(kit),
        "-s", f"fed_{side}.json", "--set", "secure_train=true", *own, "config_folder=config",
    ]  # fmt: skip
    (kit / "transfer").mkdir(mode=0o700, exist_ok=True)
    with open(kit / "output.txt", "ab", opener=opens_private) as out:
        return subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=_environment(),
            start_new_session=True, cwd=kit, umask=_PRIVATE,
        )  # fmt: skip


def _wait_for(kit: Path, process: subprocess.Popen[bytes], seconds: float = 120) -> None:
    told = json.loads((kit / "startup" / "fed_server.json").read_text())
    _, _, port = told["servers"][0]["service"]["target"].rpartition(":")
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
            return
        time.sleep(0.2)
    raise ProtocolError(f"NVFlare's server does not start; {kit / 'output.txt'} says why")


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """End processes with all that each of them began: its session is its own."""
    for signum, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0)):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
        until = time.monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))


class _Heard(threading.Thread):
    """Asks a server for a job's status and what its coordinator says; its calls may hang."""

    def __init__(self, session: Any, job_id: str) -> None:
        super().__init__(daemon=True)
        self._session, self._left = session, threading.Event()
        self.job_id, self.status, self.said = job_id, "SUBMITTED", list[str]()
        self._at, self._begun = time.monotonic(), False

    def run(self) -> None:
        """Ask each second, until the job is over."""
        while self.status in _RUNNING and not self._left.wait(1.0):
            with suppress(Exception):  # of the engine, which is not heard then
                self.status = str(self._session.get_job_status(self.job_id)).upper()
                told = self._session.show_stats(self.job_id, SERVER)
                stats = told.get(SERVER) or {}  # of its process for the job: none if that hangs
                self._begun |= bool(stats)
                self.said = stats.get(SAID, {}).get("said", self.said)
                if stats or self.status != "RUNNING":
                    self._at = time.monotonic()

    def silent(self, seconds: float) -> bool:
        """Return whether nothing was heard for so long."""
        limit = seconds if self._begun else max(seconds, _STARTING)
        return time.monotonic() - self._at > limit

    def abort(self) -> None:
        """End the job, if the server can be reached."""
        self._left.set()
        self.join(_STOPPING)
        if not self.is_alive():
            with suppress(Exception):  # of the engine
                self._session.abort_job(self.job_id)


class Deployment:
    """A running deployment, as the owner of a job sees it.

    Raises `UsageError` if `kit` is no user's startup kit, `ProtocolError` if it is not reached.
    """

    def __init__(self, kit: Path) -> None:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        user = user_of(kit)
        try:
            self._session: Any = new_secure_session(user, str(kit.resolve()), timeout=30.0)
        except Exception as err:  # of the engine
            raise ProtocolError(
                f"the deployment of {kit} is not reached ({type(err).__name__}); is its server up?"
            ) from err

    def wait_for(self, sites: list[str], seconds: float) -> None:
        """Wait until sites are there; raises `ProtocolError` that names one that is not."""
        until = time.monotonic() + seconds
        while True:
            there = {client.name for client in self._session.get_system_info().client_info}
            lacking = [site for site in sites if site not in there]
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
            Takes NVFlare's status of the job and all progress lines of its coordinator so far.
        silent : float
            Seconds without an answer after which the server counts as lost.
        """
        out.chmod(0o700)
        heard = _Heard(self._session, self._session.submit_job(str(job)))
        heard.start()
        try:
            while heard.is_alive() and not heard.silent(silent):
                heard.join(0.2)
                each(heard.status, heard.said)
            if heard.is_alive():
                each("SILENT", [*heard.said, f"the server is lost: silent for {silent:g} s"])
                heard.abort()
                return f"silent for {silent:g} s"
        except KeyboardInterrupt:
            heard.abort()
            raise
        try:
            found = Path(self._session.download_job_result(heard.job_id, str(out)))
        except Exception as err:  # of a server that was killed there is none
            return f"{heard.status}, no result: {type(err).__name__}"
        for kept in found.rglob("fedtrees"):
            copy_private(kept, out)  # the archive of NVFlare has lost the modes
            break
        shutil.rmtree(found, ignore_errors=True)
        return heard.status

    def close(self) -> None:
        """Leave."""
        self._session.close()
