"""Classes that NVFlare runs through its Collab API: the coordinator at the server, and the site.

Certificates identify the parties. Messages are the frames of `fedtrees.core.remote`, as bytes.
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
from fedtrees.federation.agreement import FederationAgreement, read
from fedtrees.federation.coordinator import Send, run_federation, why_of
from fedtrees.federation.deployment import SAID, SETTINGS
from fedtrees.federation.log import ENDED, PROGRESS, end_with
from fedtrees.federation.site import Refused, Settings, Site, refusal

_POLL = 1.0  # seconds between two polls of a coordinating site by the server


def _sender(federation: FederationAgreement, proxies: Any, *, secure: bool) -> Send:
    """Return the function that sends frames to parties.

    With `secure`, only the receiver can read a frame, and not the server that forwards it.
    """
    by_site = {proxy.name: proxy for proxy in proxies}
    lacking = [site for site in federation.parties.values() if site not in by_site]
    lacking = [site for site in lacking if federation.party(site) != federation.coordinator]
    if lacking:
        raise PartyError(f"no site {lacking[0]!r} takes part in the deployment")

    def send(party: str, blob: bytes, seconds: float) -> bytes:
        site, begun = federation.site(party), time.monotonic()
        try:
            answer = by_site[site](timeout=seconds, secure=secure).call(blob=blob)
        # An error of NVFlare, because errors of a site are returned in a frame.
        except Exception as err:
            why = _failure_reason(err, time.monotonic() - begun, seconds)
            raise PartyError(f"{party!r} at {site!r} {why}") from err
        return bytes(answer)

    return send


def _failure_reason(err: Exception, took: float, seconds: float) -> str:
    """Return why a call to a site failed. NVFlare also reports a timeout if it ended the job."""
    if "TimeoutError" not in (type(err).__name__, getattr(err, "cause_type", "")):
        return "is lost"
    if took < 0.9 * seconds:
        return "had not answered when NVFlare ended the job, which it does once a site's is lost"
    return f"does not answer within {seconds:g} s"


class Coordinator:
    """The server: it coordinates, or lets the coordinating site do so.

    Parameters
    ----------
    federation : str
        JSON of `FederationAgreement.plain`.
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
                # A protocol without a server is coordinated by its first party.
                self._watch(federation, say)
            else:
                send = _sender(federation, collab.clients, secure=False)
                run_federation(federation, send, out, say, stopped=over)
            over("")
        except BaseException as err:
            over(why_of(err))
            raise

    def _watch(self, federation: FederationAgreement, say: Any) -> None:
        """Let a site coordinate, and poll it until it is done."""
        party = federation.coordinator
        site, seconds, n_lines = federation.site(party), federation.patience, 0
        try:
            proxy = next(p for p in collab.clients if p.name == site)
            proxy(timeout=seconds).drive(federation=self.federation)
            while True:
                lines, over, why = proxy(timeout=seconds).progress(n_received=n_lines)
                n_lines += len(lines)
                for text in lines:
                    say(text)
                if over:
                    break
                time.sleep(_POLL)
        except Exception as err:
            raise PartyError(f"{party!r} at {site!r} is lost, or does not take part") from err
        if why:
            raise PartyError(why)


class Progress(FLComponent):
    """Returns the coordinator's progress lines to the owner, as statistics of the NVFlare job."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Handle an event of NVFlare."""
        if event_type == InfoCollector.EVENT_TYPE_GET_STATS:
            run = fl_ctx.get_engine().get_workspace().get_run_dir(fl_ctx.get_job_id())
            progress_file = Path(run) / "fedtrees" / PROGRESS
            lines = progress_file.read_text().splitlines() if progress_file.is_file() else []
            collector = fl_ctx.get_prop(InfoCollector.CTX_KEY_STATS_COLLECTOR)
            collector.set_info(SAID, {"said": lines})


class FlareSite:
    """A site of a deployment."""

    def __init__(self) -> None:
        self._site: Site | None = None
        self._said: list[str] = []
        self._over, self._why = False, ""

    def _here(self) -> Site:
        """Return the site, created at first use."""
        if self._site is None:
            local = Path(collab.workspace.get_site_config_dir())
            self._log = local / "site.log"
            self._site = Site(
                collab.site_name, partial(Settings.load, local / SETTINGS), self._tell
            )
        return self._site

    def _tell(self, text: str) -> None:
        """Append a line to the owner's log.

        NVFlare's logs are not used, because they may be sent to the server.
        """
        append_private(self._log, f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")

    @collab.publish
    def call(self, blob: bytes) -> bytes:
        """Answer a frame."""
        return self._here().call(collab.caller, blob)

    @collab.publish
    def drive(self, federation: str) -> bool:
        """Start coordinating, if this site is the coordinator and the server requests it."""
        if collab.caller != "server" or self._over or self._said:
            return False
        site, agreed = self._here(), read(json.loads(federation))
        self._said.append(f"{agreed.coordinator} at {site.name} coordinates")
        other_sites = [p for p in collab.clients if p.name != site.name]
        threading.Thread(
            target=self._conduct, args=(site, agreed, other_sites), daemon=True
        ).start()
        return True

    @collab.publish
    def progress(self, n_received: int) -> list[Any]:
        """Return new progress lines, whether the run is over, and why it stopped.

        `n_received` is the number of lines that the server has already received.
        """
        over, why = self._over, self._why
        return [self._said[n_received:], over, why]

    def _conduct(self, site: Site, federation: FederationAgreement, other_sites: Any) -> None:
        """Coordinate the run, and store why it stopped."""
        try:
            settings = site.agree(federation, federation.hash)
            local_data = site.own(federation, settings)
            send = _sender(federation, other_sites, secure=True)
            run_federation(federation, send, Path(settings.out), self._said.append, local_data)
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
        """End a run that was not ended, because NVFlare closes down."""
        if self._site is not None:
            self._site.lost()
