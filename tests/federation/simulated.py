"""What NVFlare's simulator runs in a test: several federations in one job, one after another."""

import json
from functools import partial
from pathlib import Path

from nvflare.collab import collab

from fedtrees.core.line import unframed
from fedtrees.federation import flare
from fedtrees.federation.flare import Coordinator, FlareSite
from fedtrees.federation.site import Settings, Site

SENDER = flare._sender
# There are no certificates in the simulator to encrypt by between sites.
flare._sender = lambda federation, proxies, secure: SENDER(federation, proxies, secure=False)


class Coordinators:
    """The server: of one federation after another."""

    def __init__(self, federations):
        self.federations = federations

    @collab.main
    def run(self):
        """Run them."""
        for federation in json.loads(self.federations):
            Coordinator(json.dumps(federation)).run()


class Sites(FlareSite):
    """A site, anew for each federation, with what its owner says of that one in a folder."""

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
        header, _ = unframed(blob)
        if header["does"] == "agree":
            self._anew(header["federation"]["name"])
        return super().call(blob)

    @collab.publish
    def drive(self, federation):
        """Coordinate."""
        self._anew(json.loads(federation)["name"])
        return super().drive(federation)
