"""Components that NVFlare runs for tests: several federations in one job, and a timed one."""

import json
import time
from functools import partial
from pathlib import Path

from nvflare.collab import collab

from fedtrees.core.wire import read_call
from fedtrees.federation import flare
from fedtrees.federation.flare import Coordinator, FlareSite
from fedtrees.federation.site import Settings, Site

SENDER = flare._sender


class Coordinators:
    """The server: of one federation after another."""

    def __init__(self, federations):
        self.federations = federations

    @collab.main
    def run(self):
        """Run them."""
        for federation in json.loads(self.federations):
            Coordinator(json.dumps(federation)).run()


class Timed(Coordinator):
    """The server, which writes down when each call began and ended, in seconds."""

    @collab.main
    def run(self):
        """Run the federation."""
        calls = []

        def timed(federation, proxies, *, secure):
            send = SENDER(federation, proxies, secure=secure)

            def call(party, blob, seconds):
                begun = time.monotonic()
                answer = send(party, blob, seconds)
                calls.append((begun, time.monotonic()))
                return answer

            return call

        flare._sender = timed
        super().run()
        run_folder = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        (run_folder / "fedtrees" / "calls.json").write_text(json.dumps(calls))


class Sites(FlareSite):
    """A site that is created again for each federation, with the settings in a folder."""

    def __init__(self, folder):
        super().__init__()
        self._folder = Path(folder)

    def _anew(self, name):
        self._said, self._over, self._why = [], False, ""
        self._log = self._folder / name / f"{collab.site_name}.log"
        settings = self._folder / name / "sites" / f"{collab.site_name}.toml"
        self._site = Site(collab.site_name, partial(Settings.load, settings), self._tell)

    @collab.publish
    def call(self, blob):
        """Answer a frame."""
        header, _ = read_call(blob)
        if header["does"] == "agree":
            self._anew(header["federation"]["name"])
        return super().call(blob)

    @collab.publish
    def drive(self, federation):
        """Coordinate a federation. In the simulator, sites have no certificates for encryption."""
        flare._sender = lambda federation, proxies, secure: SENDER(
            federation, proxies, secure=False
        )
        self._anew(json.loads(federation)["name"])
        return super().drive(federation)
