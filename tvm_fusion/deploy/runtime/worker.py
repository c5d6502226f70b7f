"""One worker's process: ``python -m tvm_fusion.deploy.runtime.worker``, as sessions start it."""

import contextlib
import json
import os
import socket
import sys
from typing import Any, cast


def main() -> None:
    """Serve a session until it ends."""
    # tvm_ffi imports PyTorch where it is installed: three quarters of a worker's start.
    cast("dict[str, Any]", sys.modules).setdefault("torch", None)

    import tvm_ffi

    from .load import load_part, open_runtime
    from .workers import service
    from .workers.peers import Peers

    told = json.loads(sys.argv[1])
    open_runtime()
    sockets = {int(peer): socket.socket(fileno=fd) for peer, fd in told["sockets"].items()}
    peers = Peers(told["rank"], sockets, told["memory"])
    service.register()
    service.Service(told["key"], peers, load_part, service.ending(peers))
    serve = tvm_ffi.get_global_func("runtime.disco.WorkerProcess")
    serve(told["rank"], told["size"], 1, *told["pipe"])
    sys.stdout.flush()
    os._exit(0)  # Python's own end would wait for threads of kernels


if __name__ == "__main__":
    with contextlib.suppress(OSError, KeyboardInterrupt):
        main()
