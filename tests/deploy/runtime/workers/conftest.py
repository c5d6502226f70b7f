"""Processes that are workers, without a model."""

import os
import traceback

import pytest

from tvm_fusion.deploy.runtime.workers import peers


@pytest.fixture
def run_workers():
    """Run a function of Peers in so many processes; returns their exit codes."""

    def run(size, function):
        memory, sockets = peers.connect(size)
        children = []
        for rank in range(size):
            child = os.fork()
            if not child:
                code = 3
                try:
                    for other in (s for r in range(size) if r != rank for s in sockets[r].values()):
                        other.close()
                    function(peers.Peers(rank, sockets[rank], memory))
                    code = 0
                except peers.Broken as broken:
                    code = 4 if "worker 1" in str(broken) else 5
                except BaseException:
                    traceback.print_exc()
                os._exit(code)
            children.append(child)
        for one in (s for own in sockets for s in own.values()):
            one.close()
        os.close(memory)
        return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]

    return run
