import gc
import importlib
import inspect
import itertools
import linecache
import os
import random
import re
import secrets
import shutil
import sys
import weakref
import zlib
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import wraps
from importlib.metadata import EntryPoint
from pathlib import Path

# Before TVM is imported: threads that wait for work spin, and tests run side by side.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # TVM's as well
# Stock TVM's runs tie the main thread to a core, which processes that tests start inherit.
os.environ.setdefault("TVM_BIND_THREADS", "0")

import numpy as np
import onnx
import pytest
import tiny_models
import tvm_ffi
from hypothesis import HealthCheck, settings

from benchmarks.runtime_alone import RuntimeAlone
from tvm_fusion._tvm.ffi_speed import speed_up_ffi
from tvm_fusion.deploy.runtime import load as load_module
from tvm_fusion.deploy.runtime.artifact import manifest
from tvm_fusion.deploy.runtime.executable import Executable

# Neither a busy machine nor a first call that compiles is a failure.
settings.register_profile(
    "tests",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
settings.load_profile("tests")

# Every run draws anew, and a run of the same seed draws the same again. Workers inherit it.
SEED = os.environ.setdefault("TESTS_SEED", secrets.token_hex(4))
seeds = itertools.count(zlib.crc32(SEED.encode()))
default_rng = np.random.default_rng
np.random.default_rng = lambda seed=None: default_rng(next(seeds) if seed is None else seed)


def own_frames(frame, context=1):
    """Do as ``inspect.getouterframes``, without the frames of pytest and of imports.

    TVMScript asks for the stack at each function that it parses, and needs the nearest frames. For
    each one without a file, such as importlib's among pytest's forty, ``inspect`` looks through all
    modules, which was two thirds of the collection.
    """
    found = []
    while frame and not frame.f_code.co_filename.startswith(FOREIGN):
        code, number = frame.f_code, frame.f_lineno
        lines = [linecache.getline(code.co_filename, number, frame.f_globals)]
        lines = (lines, 0) if all(lines) and context else (None, None)
        found.append(inspect.FrameInfo(frame, code.co_filename, number, code.co_name, *lines))
        frame = frame.f_back
    return found


FOREIGN = (os.path.dirname(inspect.getfile(pytest.Item)), "<frozen importlib")
inspect.getouterframes = own_frames

USUAL_FFI = [
    (kind, name, getattr(kind, name))
    for kind, name in [
        (tvm_ffi.Array, "__getitem__"),
        (tvm_ffi.Array, "__iter__"),
        (type(tvm_ffi.Object), "__instancecheck__"),
    ]
]
speed_up_ffi()  # as the command line does: a tenth of the time of most tests


@pytest.fixture
def usual_ffi(monkeypatch):
    """What apache-tvm-ffi does by itself."""
    for kind, name, method in USUAL_FFI:
        monkeypatch.setattr(kind, name, method)


WITHOUT_TORCH = Path(__file__).with_name("without_torch")


def pytest_configure(config):
    """Let ``cpu`` be the CPU that ``TESTS_CPU`` names, such as x86-64-v4 or sapphirerapids.

    What does not run on this machine is compiled and then skipped. Processes that tests start see
    this machine's CPU.
    """
    if name := os.environ.get("TESTS_CPU"):
        from tvm import relax

        from tvm_fusion.device import cpu, probe

        named = cpu.named(name, [])
        cpu.host = wraps(cpu.host)(lambda: named)  # tests of this machine's unwrap it
        if not set(named.device.features) <= set(probe.host_cpu().features):
            relax.VirtualMachine.__init__ = _skip_what_runs


def _skip_what_runs(*_args, **_options):
    pytest.skip(f"this machine does not run code for {os.environ['TESTS_CPU']}")


def _skipping_what_is_refused(item):
    """Skip where an artifact for another CPU is refused, by a test or a fixture."""
    try:
        return (yield)
    except Exception as error:  # guard: of one text alone, and only where another CPU is named
        if "TESTS_CPU" in os.environ and " this CPU is " in str(error):
            _skip_what_runs()
        raise


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_skipping_what_is_refused)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(_skipping_what_is_refused)


#: Heavy cases of one parametrised test that a run draws, unless it has the mark ``every_case`` or
#: TESTS_CASES is "all". With two, CI takes a quarter of an hour more.
DRAWN_CASES = 1
HEAVY = ("slow", "torch", "cuda_toolchain", "rocm_toolchain")


@pytest.hookimpl(tryfirst=True)  # before marks choose
def pytest_collection_modifyitems(config, items):
    """Mark as slow what ``slow_beyond(n)`` leaves over, and draw a few of many heavy cases."""
    counts, heavy = Counter(), defaultdict(list)
    for item in items:
        function = item.nodeid.partition("[")[0]
        if marker := item.get_closest_marker("slow_beyond"):
            counts[function] += 1
            if counts[function] > marker.args[0]:
                item.add_marker(pytest.mark.slow)
        if any(item.get_closest_marker(mark) for mark in HEAVY):
            heavy[function].append(item)
    left = {
        item
        for function, cases in heavy.items()
        if len(cases) > DRAWN_CASES and not cases[0].get_closest_marker("every_case")
        for item in set(cases).difference(_drawn(function, cases))
    }
    if left and os.environ.get("TESTS_CASES") != "all":
        config.hook.pytest_deselected(items=[item for item in items if item in left])
        items[:] = [item for item in items if item not in left]


def _drawn(function, cases):
    """Draw the same for all functions of a file that have the same cases, which share fixtures."""
    file, ids = function.partition("::")[0], [case.nodeid.partition("[")[2] for case in cases]
    return random.Random(f"{SEED} {file} {ids}").sample(cases, DRAWN_CASES)


def pytest_collection_finish(session):
    """Let garbage be looked for seldom.

    The modules of all tests stay to the end; Python would go through them again and again.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """Let processes that a test starts do without PyTorch, unless the test has its mark.

    tvm_ffi imports it wherever it is installed: 2.6 s of a CPU instead of 0.9 for all of TVM.
    """
    before = os.environ.get("PYTHONPATH")
    if not item.get_closest_marker("torch"):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(WITHOUT_TORCH), before]))
    try:
        return (yield)
    finally:
        if before is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = before


def pytest_report_header():
    return f"TESTS_SEED={SEED}"


@pytest.fixture
def registered_backend(tmp_path_factory, monkeypatch):
    """Register ``torch.compile``'s backend as pyproject.toml does; keep its artifacts apart."""
    registry = pytest.importorskip("torch._dynamo.backends.registry")
    dynamo, group = importlib.import_module("torch._dynamo"), "torch_dynamo_backends"
    monkeypatch.setenv("TVM_FUSION_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    project = Path(__file__).parents[1] / "pyproject.toml"
    (entries,) = re.findall(rf"entry-points.{group}\]\n((?:.+\n)+)", project.read_text())
    registry._lazy_import()
    for name, place in re.findall(r'(\w+) = "(.+)"', entries):
        monkeypatch.setitem(registry._BACKENDS, name, EntryPoint(name, place, group))
    dynamo.reset()
    yield
    dynamo.reset()


@pytest.fixture
def plain_llvm(monkeypatch):
    """Let LLVM optimise nothing of what a test compiles, which takes a third of most tests' time.

    For tests of graphs and their meaning. Tests of schedules, artifacts and whole models, and the
    fuzzer, run the code that users get, as do fixtures that several tests share.
    """
    from tvm.target import Target

    from tvm_fusion.deploy.build import codegen

    usual = codegen.codegen_build

    def build(mod, target):
        if target.kind.name == "llvm":
            plain = {"kind": "llvm", "keys": list(target.keys), "opt-level": 0}
            target = Target({**dict(target.attrs), **plain})
        return usual(mod, target)

    for module in (importlib.import_module("tvm.tirx.build"), codegen):
        monkeypatch.setattr(module, "codegen_build", build)


def seed(name):
    """Let all generators that tests draw from begin anew."""
    global seeds
    seeds = itertools.count(zlib.crc32(f"{SEED} {name}".encode()))
    random.seed(next(seeds))
    np.random.seed(next(seeds) % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(next(seeds))


@pytest.fixture(autouse=True)
def _draws(request):
    """Let a test's draws depend on the run's seed and its own name, not on the tests before it."""
    seed(request.node.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Let what tests share be drawn by its own name, whichever test is the first to ask for it."""
    if fixturedef.scope == "function":
        return (yield)
    with _kept_generators():
        number = getattr(request, "param_index", 0)
        seed(f"{fixturedef.baseid} {fixturedef.argname} {number}")
        return (yield)


@contextmanager
def _kept_generators():
    global seeds
    kept, states = seeds, (random.getstate(), np.random.get_state())
    try:
        yield
    finally:
        seeds = kept
        random.setstate(states[0])
        np.random.set_state(states[1])


@pytest.fixture(scope="session")
def tiles(tmp_path_factory):
    """AMX's tiles: see there."""
    from emulator.tiles import Tiles

    return Tiles(tmp_path_factory.mktemp("tiles"))


@pytest.fixture(scope="session")
def dense_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "dense.onnx"
    onnx.save(tiny_models.dense(), path)
    return path


@pytest.fixture(scope="session")
def dense_artifact():
    """A compiled model that is not written yet."""
    import tvm_fusion

    return tvm_fusion.compile(tiny_models.dense(), dims={"batch": tvm_fusion.DimRange(1, 8)})


@pytest.fixture(scope="session")
def dense_folder(dense_artifact, tmp_path_factory):
    """An artifact that nobody changes."""
    return dense_artifact.export(tmp_path_factory.mktemp("artifacts") / "dense")


@pytest.fixture
def dense_copy(dense_folder, tmp_path):
    """An artifact of one's own, to be damaged."""
    return shutil.copytree(dense_folder, tmp_path / "dense")


class Elsewhere:
    """Repeats the first call of every loaded artifact in a process without the compiler.

    Here TVM's compiler is in the process, and with it functions that are missing where a user loads
    an artifact. Calls that write to what they are given, and large ones, are not repeated.
    """

    MOST_BYTES = 1 << 20

    def __init__(self):
        paths = filter(None, [str(WITHOUT_TORCH), os.environ.get("PYTHONPATH")])
        self.alone = RuntimeAlone({"PYTHONPATH": os.pathsep.join(paths)})
        self.folders = weakref.WeakKeyDictionary()

    def loading(self, load):
        @wraps(load)
        def wrapper(path, **options):
            executable = load(path, **options)
            is_folder = isinstance(path, str | os.PathLike)
            if is_folder and not options and self._is_fit(executable.manifest):
                self.folders[executable] = Path(path).resolve()
            return executable

        return wrapper

    @staticmethod
    def _is_fit(found):
        kept = any(entry.get("in_place") for entry in found["functions"].values())
        return found["target"]["kind"] == "llvm" and not kept and not found.get("packed_functions")

    def running(self, run):
        @wraps(run)
        def wrapper(executable, inputs, *, function="main", out=None):
            folder = None if out is not None else self.folders.pop(executable, None)
            is_there = folder is not None and folder.exists()
            if not is_there or not self._is_small(executable, inputs):
                return run(executable, inputs, function=function, out=out)
            given = {name: np.array(array) for name, array in inputs.items()}
            found = run(executable, inputs, function=function)
            if manifest.read(folder)["sha256"] == executable.manifest["sha256"]:
                again = self.alone.run(folder, given, function)
                for name, array in found.items():
                    # Bits, where numpy does not know that the dtype has NaN.
                    is_own = array.dtype.isbuiltin == 1
                    bits = array.dtype if is_own else f"u{array.itemsize}"
                    np.testing.assert_array_equal(
                        again[name].view(bits), array.view(bits), f"{name}, without compiler"
                    )
            return found

        return wrapper

    def _is_small(self, executable, inputs):
        arrays = isinstance(inputs, dict) and all(
            isinstance(array, np.ndarray) for array in inputs.values()
        )
        weights = executable.manifest["files"][manifest.WEIGHTS]["bytes"]
        return arrays and weights + sum(a.nbytes for a in inputs.values()) <= self.MOST_BYTES


@pytest.fixture(scope="session", autouse=True)
def _elsewhere():
    elsewhere, patch = Elsewhere(), pytest.MonkeyPatch()
    patch.setattr(load_module, "load", elsewhere.loading(load_module.load))
    running = elsewhere.running(Executable.run)
    patch.setattr(Executable, "run", running)
    calling = Executable.__call__

    @wraps(calling)
    def call(executable, /, *positional, out=None, **inputs):
        if positional or out is not None or executable not in elsewhere.folders:
            return calling(executable, *positional, out=out, **inputs)
        return running(executable, inputs)

    patch.setattr(Executable, "__call__", call)
    yield elsewhere
    patch.undo()
    elsewhere.alone.close()
