import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from device_code import cuda_archs, fat_binary_kinds

from tvm_fusion._tvm import cuda as tvm_cuda
from tvm_fusion.deploy.toolchain import cuda, nvcc, nvrtc, toolchain
from tvm_fusion.deploy.toolchain.host import find_compiler
from tvm_fusion.device import parse
from tvm_fusion.errors import UserError

_HAS_NVCC, _LACKS = nvcc.find_nvcc(), nvrtc.nvrtc_lacks()
COMPILERS = [
    pytest.param(
        "nvcc",
        marks=[
            pytest.mark.cuda_toolchain,
            pytest.mark.skipif(not _HAS_NVCC, reason="nvcc was not found"),
        ],
    ),
    pytest.param(
        "nvrtc",
        marks=[
            pytest.mark.cuda_toolchain,
            pytest.mark.skipif(bool(_LACKS), reason=f"missing packages: {', '.join(_LACKS)}"),
        ],
    ),
]
_DIVIDE = """
extern "C" __global__ void divide(float *a, const float *b) {
  a[threadIdx.x] = a[threadIdx.x] / b[threadIdx.x];
}
"""
_TENSOR_CORE = """
#include <cuda_bf16.h>
#include <mma.h>
extern "C" __global__ void square(float *c, const __nv_bfloat16 *a) {
  using namespace nvcuda::wmma;
  fragment<matrix_a, 16, 16, 16, __nv_bfloat16, row_major> left;
  fragment<matrix_b, 16, 16, 16, __nv_bfloat16, col_major> right;
  fragment<accumulator, 16, 16, 16, float> sum;
  fill_fragment(sum, 0.0f);
  load_matrix_sync(left, a, 16);
  load_matrix_sync(right, a, 16);
  mma_sync(sum, left, right, sum);
  store_matrix_sync(c, sum, 16, mem_row_major);
}
"""
_TENSOR_MAP = """
#ifndef __CUDACC_RTC__
#include <cuda.h>
#endif
static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == 128);
extern "C" __global__ void fetch(const __grid_constant__ CUtensorMap map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
}
"""


def _model():
    """Softmax in float32, matrix product and GELU in float16, exp in bfloat16.

    The product is too small for TVM's tensor core schedule, whose first use imports for a minute.
    """
    from relax_modules import main_module
    from tvm import relax
    from tvm.relax import op

    shapes = {"x": ((33, 257), "float32"), "a": ((33, 48), "float16"), "b": ((48, 40), "float16")}
    shapes["c"] = ((5, 77), "bfloat16")
    variables = [relax.Var(name, relax.TensorType(*kind)) for name, kind in shapes.items()]
    x, a, b, c = variables

    def result(emit, *_):
        results = [op.nn.softmax(x), op.nn.gelu(op.matmul(a, b, "float32")), op.exp(c)]
        return relax.Tuple([emit(r) for r in results])

    return main_module(variables, result)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize(
    ("target", "archs"), [("cuda:sm_80,sm_90a", [80, 90]), ("cuda:sm_89", [89])]
)
def test_a_library_holds_machine_code_for_each_architecture_and_nothing_else(
    compiler, target, archs, tmp_path, monkeypatch
):
    import tvm

    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    spec = parse(target)
    library = tmp_path / "model.so"
    with toolchain(spec) as tools, spec.tvm_target():
        built = tvm.compile(_model(), spec.tvm_target())
        built.export_library(str(library), fcompile=tools.link)
    data = library.read_bytes()
    assert tools.device_compiler == compiler
    assert cuda_archs(data) == archs
    assert set(fat_binary_kinds(data)) <= {2}  # no PTX
    assert b"__global__" not in data
    assert b".target sm_" not in data


@pytest.mark.parametrize("compiler", COMPILERS)
def test_division_is_ieee_division(compiler, monkeypatch):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    _, compile_source = cuda.choose_compiler(["sm_80"])
    # ptxas names the correctly rounding routine, denormals kept; fast math calls none.
    assert b"div_rn_noftz_f32" in compile_source(_DIVIDE, ["sm_80"])


@pytest.mark.parametrize("compiler", COMPILERS)
def test_tensor_core_headers_are_found(compiler, monkeypatch):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    _, compile_source = cuda.choose_compiler(["sm_80", "sm_90a"])
    assert cuda_archs(compile_source(_TENSOR_CORE, ["sm_80", "sm_90a"])) == [80, 90]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_tensor_maps_are_known(compiler, monkeypatch):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    _, compile_source = cuda.choose_compiler(["sm_90a"])
    assert cuda_archs(compile_source(_TENSOR_MAP, ["sm_90a"])) == [90]


@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_syntax_error_shows_what_the_compiler_said(compiler, monkeypatch):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", compiler)
    _, compile_source = cuda.choose_compiler(["sm_80"])
    with pytest.raises(RuntimeError, match="no_such_name"):
        compile_source("__global__ void f() { no_such_name(); }", ["sm_80"])


@pytest.mark.skipif(not _HAS_NVCC, reason="nvcc was not found")
@pytest.mark.cuda_toolchain
def test_tvms_own_callback_is_put_back():
    import tvm_ffi

    with toolchain(parse("cuda:sm_80")):
        pass
    callback = tvm_ffi.get_global_func("tvm_callback_cuda_compile")
    # TVM's own compiles with the mode of the environment, ours ignores it once chosen.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TVM_CUDA_COMPILE_MODE", "nonsense")
        with pytest.raises(ValueError, match="TVM_CUDA_COMPILE_MODE"):
            callback("")


def test_neither_compiler_is_one_sentence_that_names_what_is_missing(monkeypatch):
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda, "nvrtc_lacks", lambda: ["cuda-bindings", "nvidia-nvfatbin"])
    expected = (
        "no CUDA compiler: nvcc was not found; these packages are missing: cuda-bindings, "
        'nvidia-nvfatbin; run `pip install "tvm_fusion[cuda]"`.'
    )
    with pytest.raises(UserError) as caught:
        cuda.choose_compiler(["sm_80"])
    assert str(caught.value) == expected


def test_an_old_nvcc_gives_way_to_nvrtc(monkeypatch):
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    monkeypatch.setattr(cuda, "find_nvcc", lambda: "/opt/old/nvcc")
    monkeypatch.setattr(cuda, "nvcc_architectures", lambda path: frozenset({"sm_80"}))
    monkeypatch.setattr(cuda, "nvrtc_lacks", lambda: [])
    assert cuda.choose_compiler(["sm_80"])[0] == "nvcc"
    assert cuda.choose_compiler(["sm_80", "sm_100"])[0] == "nvrtc"


def test_an_unknown_mode_is_refused(monkeypatch):
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", "clang")
    with pytest.raises(UserError, match="'clang'; expected nvcc or nvrtc"):
        cuda.choose_compiler(["sm_80"])


def test_a_missing_runtime_library_is_named(monkeypatch):
    def missing(name, *_):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(tvm_cuda.ctypes, "CDLL", missing)
    monkeypatch.setattr(tvm_cuda, "find_cuda_file", lambda name: None)
    with pytest.raises(UserError, match=r"libcudart\.so\.13 was not found.*tvm_fusion\[cuda\]"):
        tvm_cuda.load_cudart.__wrapped__()


def _undefined_driver_symbols():
    library = Path(find_spec("tvm").origin).parent / "lib" / "libtvm_runtime_cuda.so"
    command = ["nm", "-D", "--undefined-only", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    return {name for name in names if name.startswith("cu") and name[2].isupper()}


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm was not found")
def test_the_stand_in_has_every_symbol_that_tvm_takes_from_the_driver():
    assert _undefined_driver_symbols() <= set(tvm_cuda.DRIVER_SYMBOLS)


_ORDERS = {
    "tvm first": "import tvm",
    "tvm later": "import sys; assert 'tvm' not in sys.modules",
}


@pytest.mark.slow
@pytest.mark.slow_beyond(1)
@pytest.mark.skipif(
    tvm_cuda.find_cuda_file("lib/libcudart.so.13") is None, reason="libcudart.so.13 was not found"
)
@pytest.mark.parametrize("order", _ORDERS)
def test_the_runtime_loads_without_a_driver_in_either_order(order):
    program = f"""
from tvm_fusion._tvm.cuda import cuda_runtime_registered, load_cuda_runtime
from tvm_fusion.device import cuda_devices
{_ORDERS[order]}
devices = cuda_devices()
if 'tvm' in globals() and not devices and cuda_runtime_registered():
    raise SystemExit("TVM loads its CUDA runtime without a driver: cuda is not needed")
load_cuda_runtime({find_compiler()!r})
assert cuda_runtime_registered()
assert cuda_devices() == devices, "the stand-in must not look like a device"
import tvm
assert tvm.cuda(0).exist == bool(devices)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
