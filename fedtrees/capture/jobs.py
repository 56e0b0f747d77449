"""Change exported jobs of NVFlare so that they write a capture."""

import json
import shutil
from pathlib import Path
from typing import Any

from fedtrees.core.errors import DataError, UsageError

_SERVER = "config/config_fed_server.json"
_CONTROLLER = "nvflare.app_opt.xgboost.histogram_based_v2.fed_controller.XGBFedController"
_SHARES_TREES = "nvflare.app_opt.xgboost.tree_based."
#: NVFlare loads classes of other packages only from code that the job contains.
_MODULE = "fedtrees_capture"
_CODE = "from fedtrees.capture.flare import Recorder, RecordingController  # noqa: F401\n"


def recorded_job(job: str | Path, capture: str | Path) -> Path:
    """Copy an exported job and change it so that its server writes a capture. Return the copy.

    Raises `DataError` if the job cannot be read or written, and `UsageError` if it does not train
    XGBoost.
    """
    copy = Path(f"{capture}.job")
    if copy.exists():
        raise UsageError(f"{copy} is there already: remove it, or choose another --output")
    try:
        shutil.copytree(job, copy)
        configured = [path for path in sorted(copy.rglob(_SERVER)) if _change(path, capture)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
        shutil.rmtree(copy, ignore_errors=True)
        raise DataError(f"{job} is no job that NVFlare exported ({err})") from err
    if not configured:
        shutil.rmtree(copy)
        raise UsageError(
            f"{job}: no server in it trains XGBoost by histograms, bagging or in turns"
        )
    return copy


def _change(path: Path, capture: str | Path) -> bool:
    """Change the configuration of a server. Return False if it does not train XGBoost."""
    config = json.loads(path.read_text())
    args = {"capture": str(Path(capture).resolve())}
    changed = False
    for workflow in config["workflows"]:
        if workflow.get("path") == _CONTROLLER:
            workflow["path"] = f"{_MODULE}.RecordingController"
            workflow["args"] = {**workflow.get("args", {}), **args}
            changed = True
    components: list[dict[str, Any]] = config["components"]
    if any(str(c.get("path", "")).startswith(_SHARES_TREES) for c in components):
        components.append({"id": "fedtrees", "path": f"{_MODULE}.Recorder", "args": args})
        changed = True
    if changed:
        path.write_text(json.dumps(config, indent=2))
        custom = path.parents[1] / "custom"
        custom.mkdir(exist_ok=True)
        (custom / f"{_MODULE}.py").write_text(_CODE)
    return changed
