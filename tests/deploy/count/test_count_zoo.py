"""Stock TVM's counts on real models: figures that later changes are measured against."""

import pytest
from counted_graphs import cuda
from tvm.relax.frontend.onnx import from_onnx

from benchmarks.zoo import load
from tvm_fusion.deploy.count import count_stock

# PrimFunc calls, loop nests on a CPU, visible and hidden megabytes there.
STOCK = {
    "t5_small_enc": (106, 270, 35, 30),
    "bert_base": (187, 603, 95, 220),
    "vit_b16": (185, 602, 163, 366),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", STOCK)
def test_stock_counts(name: str) -> None:
    calls, nests, visible, hidden = STOCK[name]
    mod = from_onnx(load(name), keep_params_in_input=False)
    cpu = count_stock(mod, "llvm")
    assert (cpu.calls, cpu.kernels) == (calls, nests)
    assert (round(cpu.visible_bytes / 1e6), round(cpu.hidden_bytes / 1e6)) == (visible, hidden)
    # DLight inlines or fuses every chain of these graphs into one launch per PrimFunc.
    gpu = count_stock(mod, cuda())
    assert (gpu.calls, gpu.kernels, gpu.hidden_bytes) == (calls, calls, 0)
    assert not cpu.caveats + gpu.caveats
