"""The files: float models with random weights, and both quantizers' form of each."""

import warnings
from pathlib import Path

import numpy as np

MODELS = ("resnet50", "mobilenet_v2", "bert", "regnet")
#: Who quantized: ONNX Runtime's static quantizer with its defaults, or as ``tvm-fusion quantize``
#: calls it.
FORMS = ("defaults", "ours")
SEED = 1129
_SAMPLES = 4  # of calibration


def make(name: str, layers: int, folder: Path) -> None:
    """Write ``float.onnx``, ``defaults.onnx``, ``ours.onnx`` and ``inputs.npz`` to a folder."""
    import torch

    from benchmarks.prices.models import MODELS as PRICED
    from benchmarks.robustness.model import Tensors

    warnings.simplefilter("ignore")
    torch.manual_seed(SEED)
    module, inputs = PRICED[name].build(layers)
    wrapped = Tensors(module.eval().requires_grad_(False), list(inputs))
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        wrapped,
        tuple(inputs.values()),
        str(folder / "float.onnx"),
        input_names=list(inputs),
        opset_version=18,
        external_data=False,
        verbose=False,
    )
    arrays = {given: x.numpy() for given, x in inputs.items()}
    quantize(folder, arrays)
    np.savez(folder / "inputs.npz", **arrays)  # last: a folder that has it is complete


def quantize(folder: Path, inputs: dict[str, np.ndarray]) -> None:
    """Quantize ``float.onnx`` in both forms, by the same samples."""
    import onnx
    from onnxruntime.quantization import quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    import tvm_fusion.quantization
    from tvm_fusion.frontend.quiet import quiet_importer
    from tvm_fusion.quantization.quantize import reader

    rng = np.random.default_rng(SEED)
    wanted = {one.name for one in onnx.load(folder / "float.onnx").graph.input}
    samples = [
        {
            name: rng.standard_normal(x.shape, "float32") if x.dtype.kind == "f"
            else rng.permuted(x, axis=-1)
            for name, x in inputs.items()
            if name in wanted
        }
        for _ in range(_SAMPLES)
    ]  # fmt: skip
    place, plain = folder / "samples", folder / "preprocessed.onnx"
    place.mkdir(exist_ok=True)
    for number, sample in enumerate(samples):
        np.savez(place / f"{number}.npz", **sample)
    source = folder / "float.onnx"
    tvm_fusion.quantization.quantize(source, place, folder / "ours.onnx")
    with quiet_importer():
        quant_pre_process(source, plain, skip_symbolic_shape=True)
        quantize_static(plain, folder / "defaults.onnx", reader(samples))
    plain.unlink()
