"""A pytest plugin: what the tests build goes through this package's pipelines.

The environment names the mode and the file of verdicts:

``stock``
    Nothing is replaced; which tests build something is recorded.
``ours``
    ``relax.build`` (and so ``tvm.compile``) with the default pipelines takes this package's.
``modules``
    The modules that tests import or compare are built by both and run on the same inputs.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

import pytest
import tvm
from tvm import relax
from tvm.target import Target

from tvm_fusion import pipeline

from .differential import Observed, observe

MODE = "TVM_FUSION_UPSTREAM_MODE"
VERDICTS = "TVM_FUSION_UPSTREAM_VERDICTS"
_KINDS = ("llvm", "cuda", "rocm")


class Verdicts:
    """Write one line of JSON a test: what came of it, and how often it built something."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a")  # noqa: SIM115  # open as long as the process
        self.builds = 0
        self.observed = Observed()

    def note(self, **fields: Any) -> None:
        """Write a line."""
        print(json.dumps(fields), file=self._file, flush=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: Any) -> Any:
        """Say which test begins, for the case that it ends the process."""
        self.builds = 0
        self.note(started=_name(item.nodeid))
        return (yield)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write what came of a test."""
        if report.when == "call" or report.outcome != "passed":
            self.note(
                test=_name(report.nodeid),
                verdict=report.outcome,
                builds=self.builds,
                reason=_last_line(report) if report.failed else "",
            )

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        """Judge the modules that the test showed."""
        for number, (verdict, reason) in enumerate(self.observed.judge()):
            self.note(module=f"{_name(item.nodeid)}#{number}", verdict=verdict, reason=reason)


def pytest_configure(config: pytest.Config) -> None:
    """Replace what the mode says."""
    verdicts = Verdicts(os.environ[VERDICTS])
    config.pluginmanager.register(verdicts)
    mode = os.environ[MODE]
    build = _counted(relax.build, verdicts)
    relax.build = _through_ours(build) if mode == "ours" else build
    if mode == "modules":
        observe(verdicts.observed)


def _counted(build: Any, verdicts: Verdicts) -> Any:
    @functools.wraps(build)
    def run(*args: Any, **options: Any) -> Any:
        verdicts.builds += 1
        return build(*args, **options)

    return run


def _through_ours(build: Any) -> Any:
    @functools.wraps(build)
    def run(
        mod: tvm.IRModule,
        target: Any = None,
        params: Any = None,
        relax_pipeline: Any = "default",
        tir_pipeline: Any = "default",
        **options: Any,
    ) -> Any:
        target = Target.current() if target is None else target
        target = Target(target) if isinstance(target, str) else target or Target("llvm")
        if target.kind.name in _KINDS:
            if relax_pipeline in ("default", "default_build"):
                relax_pipeline = pipeline.PIPELINE
            if tir_pipeline == "default":
                tir_pipeline = pipeline.PIPELINE
        return build(mod, target, params, relax_pipeline, tir_pipeline, **options)

    return run


def _name(nodeid: str) -> str:
    """Name a test by its file's name and its own."""
    return nodeid.rsplit("/", 1)[-1]


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr).strip().splitlines()
    return " ".join(lines[:3])[:300]
