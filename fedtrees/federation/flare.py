"""What NVFlare runs: the server's main, and a site's one method, over its Collab API.

Certificates name the parties; what crosses are the frames of `fedtrees.core.line`, as bytes.
"""

import json
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.collab import collab
from nvflare.fuel.utils.log_utils import get_obj_logger
from nvflare.widgets.info_collector import InfoCollector

from fedtrees.core.errors import PartyError
from fedtrees.core.files import append_private
from fedtrees.federation.agreed import Agreed, read
from fedtrees.federation.coordinator import Send, conduct, why_of
from fedtrees.federation.deployment import SAID, SETTINGS
from fedtrees.federation.log import ENDED, PROGRESS, end_with
from fedtrees.federation.site import Refused, Settings, Site, refusal

_POLL = 1.0  # seconds between questions of the server to a site that coordinates


def _sender(federation: Agreed, proxies: Any, *, secure: bool) -> Send:
    """Return what carries frames to parties; `secure`: only who is meant can read them."""
    found = {proxy.name: proxy for proxy in proxies}
    lacking = [site for site in federation.parties.values() if site not in found]
    lacking = [site for site in lacking if federation.party(site) != federation.coordinator]
    if lacking:
        raise PartyError(f"no site {lacking[0]!r} takes part in the deployment")

    def send(party: str, blob: bytes, seconds: float) -> bytes:
        site, begun = federation.site(party), time.monotonic()
        try:
            answer = found[site](timeout=seconds, secure=secure).call(blob=blob)
        except Exception as err:  # of the engine: what a site does comes back in a frame
            why = _why(err, time.monotonic() - begun, seconds)
            raise PartyError(f"{party!r} at {site!r} {why}") from err
        return bytes(answer)

    return send


def _why(err: Exception, took: float, seconds: float) -> str:
    """Return what a call to a site came to: one that NVFlare ends reads as if it were late."""
    if "TimeoutError" not in (type(err).__name__, getattr(err, "cause_type", "")):
        return "is lost"
    if took < 0.9 * seconds:
        return "had not answered when NVFlare ended the job, which it does once a site's is lost"
    return f"does not answer within {seconds:g} s"


class Coordinator:
    """The server: coordinates, or leaves it to the site that holds data and does.

    `federation`: As `Agreed.plain`, in JSON.
    """

    def __init__(self, federation: str) -> None:
        self.federation = federation

    @collab.main
    def run(self) -> None:
        """Run the federation."""
        federation, log = read(json.loads(self.federation)), get_obj_logger(self)
        out = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id())) / "fedtrees"
        out.mkdir(mode=0o700, parents=True, exist_ok=True)

        def say(text: str) -> None:
            log.info(text)
            append_private(out / PROGRESS, f"{text}\n")

        def over(why: str) -> None:
            if not (out / ENDED).is_file():
                say(f"stopped: {why}" if why else "done")
                end_with(out, why)

        try:
            if federation.coordinator in federation.parties:
                self._watch(federation, say)
            else:
                send = _sender(federation, collab.clients, secure=False)
                conduct(federation, send, out, say, stopped=over)
            over("")
        except BaseException as err:
            over(why_of(err))
            raise

    def _watch(self, federation: Agreed, say: Any) -> None:
        """Let a site coordinate, and ask it until it is done."""
        party = federation.coordinator
        site, seconds, told = federation.site(party), federation.patience, 0
        try:
            proxy = next(p for p in collab.clients if p.name == site)
            proxy(timeout=seconds).drive(federation=self.federation)
            while True:
                said, over, why = proxy(timeout=seconds).progress(told=told)
                told += len(said)
                for text in said:
                    say(text)
                if over:
                    break
                time.sleep(_POLL)
        except Exception as err:
            raise PartyError(f"{party!r} at {site!r} is lost, or does not take part") from err
        if why:
            raise PartyError(why)


class Progress(FLComponent):
    """Tells the owner, who asks NVFlare for statistics of the job, what the coordinator says."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer one event."""
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            run = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
            said = Path(run) / "fedtrees" / PROGRESS
            lines = said.read_text().splitlines() if said.is_file() else []
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            collector.set_info(SAID, {"said": lines})


class FlareSite:
    """A site of a deployment."""

    def __init__(self) -> None:
        self._site: Site | None = None
        self._said: list[str] = []
        self._over, self._why = False, ""

    def _here(self) -> Site:
        if self._site is None:
            local = Path(collab.workspace.get_site_config_dir())
            self._log = local / "site.log"
            self._site = Site(
                collab.site_name, partial(Settings.load, local / SETTINGS), self._tell
            )
        return self._site

    def _tell(self, text: str) -> None:
        """Append a line to the owner's log. NVFlare may send its own logs to the server."""
        append_private(self._log, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")

    @collab.publish
    def call(self, blob: bytes) -> bytes:
        """Answer a frame."""
        return self._here().call(collab.caller, blob)

    @collab.publish
    def drive(self, federation: str) -> bool:
        """Coordinate, where this site does and the server asks."""
        if collab.caller != "server" or self._over or self._said:
            return False
        site, agreed = self._here(), read(json.loads(federation))
        self._said.append(f"{agreed.coordinator} at {site.name} coordinates")
        others = [p for p in collab.clients if p.name != site.name]
        threading.Thread(target=self._conduct, args=(site, agreed, others), daemon=True).start()
        return True

    @collab.publish
    def progress(self, told: int) -> list[Any]:
        """Return what is new since so many lines, whether it is over, and why it stopped."""
        over, why = self._over, self._why
        return [self._said[told:], over, why]

    def _conduct(self, site: Site, federation: Agreed, others: Any) -> None:
        try:
            settings = site.agree(federation, federation.hash)
            own = site.own(federation, settings)
            send = _sender(federation, others, secure=True)
            conduct(federation, send, Path(settings.out), self._said.append, own)
        except Refused as err:
            try:
                refusal(federation.coordinator, site.name, {"refused": err.code})
            except PartyError as told:
                self._why = str(told)
        except BaseException as err:
            self._tell(f"failed: {type(err).__name__}: {err}")
            self._why = why_of(err)
        self._over = True

    @collab.final
    def lost(self) -> None:
        """End what nobody ended."""
        if self._site is not None:
            self._site.lost()
