"""Engines small enough to know what must be said about them; each doubles its input."""

import os
import signal
import sys
import time

from benchmarks.harness.engines import Prepared, Unavailable


def _doubling(job, factor=2.0, before=lambda: None):
    (x,) = job.inputs.values()

    def run():
        before()
        return x * factor

    return Prepared(
        run=run,
        outputs=lambda result: {"y": result},
        versions={"fake": "1.0"},
        facts={
            "threads": os.environ["OMP_NUM_THREADS"],
            "cpus": len(os.sched_getaffinity(0)),
            "kernels": 3,
        },
    )


def right(job):
    print("libraries print; this must not reach the protocol")
    os.write(1, b"nor must this\n")
    return _doubling(job)


def wrong(job):
    return _doubling(job, factor=2.01)


def slow(job):
    return _doubling(job, before=lambda: time.sleep(0.05))


def hanging(job):
    return _doubling(job, before=lambda: time.sleep(10**6))


def raising(job):
    raise ValueError("no kernel for operator Foo\nand a long story")


def crashing(job):
    return _doubling(job, before=lambda: os.kill(os.getpid(), signal.SIGSEGV))


def leaving(job):
    def leave():
        print("terminate called: out of luck", file=sys.stderr, flush=True)
        os._exit(3)

    return _doubling(job, before=leave)


def failing_when_timed(job):
    calls = iter(range(100))

    def before():
        if next(calls) >= 2:
            raise MemoryError("not this time")

    return _doubling(job, before=before)


def unavailable(job):
    raise Unavailable(f"{job.name} has no such form")
