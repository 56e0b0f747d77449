"""What NVFlare's server loads to write a run down from within (`fedtrees.capture.jobs`).

Histograms travel as auxiliary messages, which no filter of tasks sees: the controller that answers
them writes them down. Models of bagging and cyclic training are the data and results of tasks.
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
from fedtrees.capture.training import SERVER
from fedtrees.messages.captured import CollectiveCall, ModelBytes


def _site(fl_ctx: FLContext) -> str:
    peer = fl_ctx.get_peer_context()
    return str(peer.get_identity_name()) if peer else ""


def _bytes(what: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return bytes as they are; what is none, as ciphertexts of its own kind, as nothing."""
    held = what if isinstance(what, bytes | bytearray) else b""
    return np.frombuffer(bytes(held), np.uint8)


class RecordingController(XGBFedController):
    """NVFlare's controller of histogram-based XGBoost; it writes down what it is asked.

    `capture`: The file. Other arguments are its own.
    """

    def __init__(self, capture: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        told = {
            "secure": self.secure_training,
            "vertical": bool(self.data_split_mode),
            "params": self.xgb_params,
        }
        self._writer = Writer(capture, Run.of("nvflare", "nvflare", told))

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
    """Writes down the models that tasks bring to sites, and those that come back.

    `capture`: The file.
    """

    def __init__(self, capture: str) -> None:
        super().__init__()
        self._writer = Writer(capture, Run.of("nvflare", "nvflare-trees"))

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Take what is sent after all filters of the server, and what comes before them."""
        sent = event_type == EventType.AFTER_TASK_DATA_FILTER
        if not sent and event_type != EventType.BEFORE_TASK_RESULT_FILTER:
            return
        site = _site(fl_ctx)
        ends = (SERVER, (site,)) if sent else (site, (SERVER,))
        key = FLContextKey.TASK_DATA if sent else FLContextKey.TASK_RESULT
        for message in _models(fl_ctx.get_prop(key)):
            self._writer.write(message, *ends, str(fl_ctx.get_prop(FLContextKey.TASK_NAME)))


def _models(what: Shareable) -> Iterator[ModelBytes]:
    """Yield the models of a task's data or result, an empty one where there is none yet."""
    try:
        data = from_shareable(what).data or {}
    except (ValueError, TypeError):  # of another kind
        return
    found = data.get("model_data", b"")
    parts = found if isinstance(found, list) else [found]
    for k, part in enumerate(parts):
        yield ModelBytes(_bytes(part), k, len(parts))
