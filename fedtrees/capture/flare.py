"""Plug-ins for NVFlare's server that record a run (`fedtrees.capture.jobs`).

Histograms are sent as auxiliary messages, which the task filters do not see. The controller that
replies to them therefore records them. The models of bagging and cyclic training are the data and
results of tasks.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from nvflare.apis.dxo import from_shareable
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_opt.xgboost.histogram_based_v2.defs import Constant
from nvflare.app_opt.xgboost.histogram_based_v2.fed_controller import XGBFedController

from fedtrees.capture.records import Run, Writer
from fedtrees.capture.xgboost_training import SERVER
from fedtrees.messages.captured import CollectiveCall, ModelBytes


def _site(fl_ctx: FLContext) -> str:
    """Return the name of the site that sent the current request."""
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if peer else ""


def _bytes(value: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return bytes as an array.

    Other objects, for example ciphertexts of NVFlare, become an empty array.
    """
    data = value if isinstance(value, bytes | bytearray) else b""
    return np.frombuffer(bytes(data), np.uint8)


class RecordingController(XGBFedController):
    """NVFlare's controller of histogram-based XGBoost, which also records all requests.

    Parameters
    ----------
    capture : str
        The file of the capture.
    **arguments
        Arguments of NVFlare's controller.
    """

    def __init__(self, capture: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        job = {
            "secure": self.secure_training,
            "vertical": bool(self.data_split_mode),
            "params": self.xgb_params,
        }
        self._writer = Writer(capture, Run.of("nvflare", "nvflare", job))

    def _process_xgb_request(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        site, op = _site(fl_ctx), request.get_header(Constant.MSG_KEY_XGB_OP)
        reply = super()._process_xgb_request(topic, request, fl_ctx)
        part = CollectiveCall(
            number=int(request.get(Constant.PARAM_KEY_SEQ, 0)),
            rank=int(request.get(Constant.PARAM_KEY_RANK, 0)),
            world=len(self.participating_clients),
            code=int(
                request.get(Constant.PARAM_KEY_DATA_TYPE, request.get(Constant.PARAM_KEY_ROOT, 0))
            ),
            summed=op == Constant.OP_ALL_REDUCE,
            sealed=bool(request.get_header(Constant.HEADER_KEY_ENCRYPTED_DATA)),
            sent=_bytes(request.get(Constant.PARAM_KEY_SEND_BUF)),
            answered=_bytes(reply.get(Constant.PARAM_KEY_RCV_BUF)),
        )
        self._writer.write(part, site, (SERVER,), op)
        return reply


class Recorder(FLComponent):
    """Records the models that tasks send to sites, and the models that the sites return.

    `capture` is the file of the capture.
    """

    def __init__(self, capture: str) -> None:
        super().__init__()
        self._writer = Writer(capture, Run.of("nvflare", "nvflare-trees"))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Record task data after all filters of the server, and results before them."""
        sent = event_type == EventType.AFTER_TASK_DATA_FILTER
        if not sent and event_type != EventType.BEFORE_TASK_RESULT_FILTER:
            return
        site = _site(fl_ctx)
        ends = (SERVER, (site,)) if sent else (site, (SERVER,))
        key = FLContextKey.TASK_DATA if sent else FLContextKey.TASK_RESULT
        for message in _models(fl_ctx.get_prop(key)):
            self._writer.write(message, *ends, str(fl_ctx.get_prop(FLContextKey.TASK_NAME)))


def _models(shareable: Shareable) -> Iterator[ModelBytes]:
    """Yield the models in a task's data or result, an empty one if there is none yet."""
    try:
        data = from_shareable(shareable).data or {}
    except (ValueError, TypeError):  # the task contains no model
        return
    model_data = data.get("model_data", b"")
    parts = model_data if isinstance(model_data, list) else [model_data]
    for k, part in enumerate(parts):
        yield ModelBytes(_bytes(part), k, len(parts))
