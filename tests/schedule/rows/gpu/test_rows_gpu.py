"""Row programs on a GPU: what they compute, what a launch needs; no GPU is needed."""

import re

import emulator.launch
import pytest
import tvm
import tvm_ffi
from emulator.memory import EmulationError
from nvcc import cuda_source, machine_code, needs_nvcc
from relax_modules import main_module
from tvm import relax, s_tir, tirx

from tests.schedule.rows import row_programs as programs
from tests.schedule.rows.cpu.test_rows_cpu import CASES, HALF, POOLS, SYMBOLIC
from tests.schedule.rows.row_checks import check, gpu_target
from tvm_fusion.deploy.count import count
from tvm_fusion.device import parse
from tvm_fusion.pipeline import STAGES
from tvm_fusion.schedule.gpu.dlight import check_gpu
from tvm_fusion.schedule.rows.gpu.config import RowConfig
from tvm_fusion.schedule.rows.gpu.forms import estimate_rows_gpu
from tvm_fusion.schedule.rows.gpu.kernel import schedule_rows_gpu

DEVICE = parse("cuda:sm_90a").device


def scheduled(example, target=None):
    target = target or gpu_target()
    program, device = example.program(), parse(target).device
    config = estimate_rows_gpu(program, device).config
    func = schedule_rows_gpu(program, config, device).with_attr("global_symbol", "main")
    assert check_gpu(func, target) is None
    return func


@pytest.mark.slow_beyond(24)
@pytest.mark.parametrize("size", [(5, 127), (37, 100)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_odd_sizes(case, size):
    example = CASES[case](*size)
    check(example, scheduled(example), tolerance=HALF if "half" in case else 5e-6)


@pytest.mark.parametrize("pool", POOLS, ids=str)
def test_windows(pool):
    example = programs.max_pool(*pool)
    check(example, scheduled(example))


@pytest.mark.parametrize("number", range(len(SYMBOLIC)))
def test_symbolic_extents(number):
    example, sizes = SYMBOLIC[number]
    check(example, scheduled(example), sizes)


LONG = {
    "softmax": programs.softmax(2, 50000),
    "layer norm": programs.layer_norm(2, 40000, residual=True),
    "mirrored": programs.mirrored(2, 30000),
    "shared": programs.mirrored(3, 3000),
}


@pytest.mark.parametrize("case", LONG)
def test_long_rows(case):
    check(LONG[case], scheduled(LONG[case]))


def threads_and_blocks(func):
    extents = {}

    def note(loop):
        if loop.thread_binding is not None:
            extents[str(loop.thread_binding.thread_tag)] = int(loop.extent)

    tvm_ffi.structural_walk(func.body, (tirx.For, note))
    return tuple(extents.get(axis, 1) for axis in ("blockIdx.x", "threadIdx.x", "threadIdx.y"))


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        (programs.softmax(512, 1024), (512, 32, 8)),  # warps of a row
        (programs.softmax(512, 20), (32, 8, 16)),  # rows of a block
        (programs.softmax(512, tirx.Var("n", "int64")), (512, 32, 8)),
        (programs.total((512, 1000), (0,)), (32, 32, 16)),  # threads along the columns
        (programs.max_pool(1, 8, 18, 18), (8, 256, 1)),  # a thread an output
        (programs.total((1000, 1000), (0, 1)), (1, 32, 32)),
    ],
)
def test_threads_follow_the_rows(example, expected):
    assert threads_and_blocks(scheduled(example)) == expected


def test_amd_limits_hold():
    target = parse("rocm:gfx942").tvm_target()
    example = programs.total((1000, 1000), (0, 1))
    blocks, x, y = threads_and_blocks(scheduled(example, target))
    assert blocks == 1
    assert x * y <= int(target.attrs["max_num_threads"])


def buffers(func, scope):
    blocks = []
    tvm_ffi.structural_walk(func.body, (tvm.s_tir.SBlock, blocks.append))
    return [b.name for block in blocks for b in block.alloc_buffers if b.scope() == scope]


def test_rows_stay_in_registers_and_are_read_once():
    func = scheduled(programs.layer_norm(64, 1024))
    assert buffers(func, "shared") == ["total_warps", "squares_warps"]  # an element a warp
    loads = []
    tvm_ffi.structural_walk(func.body, (tvm.ir.TensorLoad, loads.append))
    assert [load.source.name for load in loads].count("x") == 1


def test_exchanged_rows_are_shared_and_estimated():
    example = programs.mirrored(64, 3000)
    assert buffers(scheduled(example), "shared") == ["e"]
    assert estimate_rows_gpu(example.program(), DEVICE).shared_bytes == 12000


def test_row_that_fits_nowhere_is_recomputed():
    example = programs.mirrored(64, 30000)
    assert buffers(scheduled(example), "shared") == []
    assert estimate_rows_gpu(example.program(), DEVICE).shared_bytes == 0


def test_results_that_fit_nowhere_are_refused():
    example = programs.mirrored_columns(2, 40000, 3)
    reason = estimate_rows_gpu(example.program(), DEVICE)
    assert reason.code == "row_too_long"
    assert "160000 bytes of shared memory" in reason.sentence
    with pytest.raises(ValueError, match="160000 bytes"):
        schedule_rows_gpu(example.program(), RowConfig(32, 1), DEVICE)


@pytest.mark.parametrize("case", CASES)
def test_one_launch(case):
    example = CASES[case](37, 100)
    builder = relax.BlockBuilder()
    func = scheduled(example).without_attr("global_symbol").with_attr("tirx.is_scheduled", True)
    kernel = builder.add_func(func, "kernel")

    def types(tensors):
        return [relax.TensorType([int(e) for e in t.shape], str(t.dtype)) for t in tensors]

    inputs = [relax.Var(f"x{i}", t) for i, t in enumerate(types(example.inputs))]
    with builder.function("main", inputs):
        out = types(example.outputs)
        call = relax.call_tir(kernel, inputs, out if len(out) > 1 else out[0])
        builder.emit_func_output(builder.emit(call))
    result = count(builder.get(), gpu_target(), tir_pipeline="tvm_fusion")
    assert result.kernels == 1
    assert result.hidden_bytes == 0


def test_threads_wait_before_they_read_what_others_wrote():
    source = cuda_source(scheduled(programs.mirrored(64, 3000)))
    body = source[source.rindex("__global__") :]
    written, read = re.search(r"e_ptr\[\(.*\] =", body).start(), body.rindex("__syncthreads()")
    assert written < read < re.search(r"y_ptr( \+|\[)", body).start()


@pytest.mark.cuda_toolchain
@needs_nvcc
def test_nothing_is_spilled():
    numbers = {f"case{i}": CASES[case](37, 100) for i, case in enumerate(CASES)}
    made = machine_code({name: scheduled(example) for name, example in numbers.items()})
    assert not {name for name, one in made.items() if one.spilled_bytes}


@pytest.mark.parametrize("operator", [relax.op.argmax, relax.op.argmin])
@pytest.mark.parametrize("shape", [(5,), (7, 500), (1, 5000)], ids=str)
def test_tvm_knows_how_threads_share_a_search(operator, shape):
    """It recognises a reduction of two values by its spelling."""
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    target = parse("cuda:sm_90a").tvm_target()
    with target:
        mod = tvm.ir.transform.Sequential([stage() for _, stage in STAGES])(
            main_module([x], operator(x, len(shape) - 1))
        )
    (func,) = [f for f in mod.functions.values() if isinstance(f, tirx.PrimFunc)]
    lowered = s_tir.transform.LowerCrossThreadReduction()(tvm.IRModule({"main": func}))
    assert "tvm_thread_allreduce" in lowered.script()


def test_tvm_still_changes_results_in_shared_memory(monkeypatch):
    """When this fails, ``lower.thread_values`` can go."""
    monkeypatch.setattr(emulator.launch, "PrivateReductionResults", tirx.transform.StmtSimplify)
    example = CASES["softmax over the middle"](5, 127)
    with pytest.raises(EmulationError, match="written without a barrier after a read"):
        check(example, scheduled(example))
