"""Models of DNNFusion's table 5 (Niu et al., PLDI 2021), at batch 1.

Convolutional networks are written here, batch norms folded into biases. BERT-base, GPT-2 and
EfficientNet-B0 are the zoo's; the other transformers are configurations of the library
transformers, exported by PyTorch. Its two R-CNNs are not built: they select boxes at run time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.relax import op

from .network import Network
from .taso import vgg


@dataclass(frozen=True)
class Model:
    """A model, and how many layers DNNFusion's fusion leaves of how many."""

    # Takes ``fp32`` or ``fp16`` and builds the model as importers give it.
    build: Callable[[str], tvm.IRModule]
    # As published.
    operators: int
    fused: int


def _written(write: Callable[..., Any], *shape: int) -> Callable[[str], tvm.IRModule]:
    dtypes = {"fp32": "float32", "fp16": "float16"}
    return lambda precision: Network(dtypes[precision]).build(write, shape)


def _zoo(name: str) -> Callable[[str], tvm.IRModule]:
    def build(precision: str) -> tvm.IRModule:
        from benchmarks import zoo

        return imported(zoo.load(name), precision)

    return build


def _encoder(architecture: str, **sizes: int) -> Callable[[str], tvm.IRModule]:
    def build(precision: str) -> tvm.IRModule:
        import torch
        import transformers

        config = getattr(transformers, f"{architecture}Config")(**sizes)
        config.return_dict = False
        module = getattr(transformers, f"{architecture}Model")(config)
        ids = torch.randint(config.vocab_size, (1, 128))
        module = module.eval().requires_grad_(False)
        return imported(torch.export.export(module, (ids,)), precision)

    return build


def imported(model: Any, precision: str) -> tvm.IRModule:
    """Import a model in a precision."""
    from tvm_fusion.config import FusionConfig
    from tvm_fusion.frontend import import_model

    return import_model(model, FusionConfig(precision=precision)).mod


def vgg16(net: Network, x: Any) -> Any:
    """VGG of 13 convolutions."""
    return vgg(net, x, (2, 2, 3, 3, 3))


def mobilenet_v1_ssd(net: Network, x: Any) -> Any:
    """MobileNetV1 with SSD's boxes of six maps (Howard et al., 2017; Liu et al., 2016)."""

    def relu6(y: Any) -> Any:
        return op.clip(y, 0, 6)

    def block(x: Any, width: int, stride: int = 1) -> Any:
        own = int(x.ty.shape[1])
        return net.conv(net.conv(x, own, 3, stride, groups=own, act=relu6), width, 1, act=relu6)

    x = net.conv(x, 32, 3, 2, act=relu6)
    maps = []
    steps = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5)
    for width, stride in steps:
        x = block(x, width, stride)
    maps.append(x)
    x = block(block(x, 1024, 2), 1024)
    maps.append(x)
    for width in (512, 256, 256, 128):
        x = net.conv(net.conv(x, width // 2, 1, act=relu6), width, 3, 2, act=relu6)
        maps.append(x)
    found = []
    for each in (4, 91):  # boxes and classes
        parts = []
        for number, y in enumerate(maps):
            y = net.conv(y, (3 if number == 0 else 6) * each, 1, act=None)
            y = net.emit(op.permute_dims(y, (0, 2, 3, 1)))
            parts.append(net.emit(op.reshape(y, (1, -1, each))))
        found.append(net.concat(parts))
    return [found[0], net.emit(op.sigmoid(found[1]))]


def _mish(net: Network) -> Callable[[Any], Any]:
    """Mish as PyTorch's decompositions write it."""

    def mish(x: Any) -> Any:
        w = net.emit(op.exp(x))
        two = net.number(2.0)
        near = op.multiply(two, op.atanh(op.divide(w, op.add(two, w))))
        far = op.log(op.add(net.number(1.0), w))
        softplus = op.where(op.less(op.abs(w), net.number(0.25)), near, far)
        softplus = op.where(op.greater(x, net.number(20.0)), x, softplus)
        return op.multiply(x, op.tanh(softplus))

    return mish


def yolo_v4(net: Network, x: Any) -> Any:
    """CSPDarknet-53 with Mish, SPP and PANet (Bochkovskiy et al., 2020)."""
    mish = _mish(net)

    def leaky(y: Any) -> Any:
        return op.nn.leakyrelu(y, 0.1)

    def conv(x: Any, width: int, window: int, stride: int = 1, act: Any = leaky) -> Any:
        return net.conv(x, width, window, stride, act=act)

    def up(x: Any) -> Any:
        size = 2 * int(x.ty.shape[2])
        return net.emit(op.image.resize2d(x, (size, size), method="nearest_neighbor"))

    def stage(x: Any, width: int, blocks: int) -> Any:
        x = conv(x, width, 3, 2, mish)
        half = width if blocks == 1 else width // 2
        a, y = conv(x, half, 1, 1, mish), conv(x, half, 1, 1, mish)
        for _ in range(blocks):
            inner = conv(y, width // 2, 1, 1, mish)
            y = net.emit(op.add(y, conv(inner, half, 3, 1, mish)))
        return conv(net.concat([conv(y, half, 1, 1, mish), a]), width, 1, 1, mish)

    def five(x: Any, width: int) -> Any:
        for number in range(5):
            x = conv(x, width * (1 + number % 2), 1 + 2 * (number % 2))
        return x

    x = conv(x, 32, 3, 1, mish)
    stages = []
    for width, blocks in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        x = stage(x, width, blocks)
        stages.append(x)
    for width, window in ((512, 1), (1024, 3), (512, 1)):
        x = conv(x, width, window)
    x = net.concat([*(net.pool(x, n, 1, n // 2) for n in (13, 9, 5)), x])
    for width, window in ((512, 1), (1024, 3), (512, 1)):
        x = conv(x, width, window)
    middle = five(net.concat([conv(stages[3], 256, 1), up(conv(x, 256, 1))]), 256)
    fine = five(net.concat([conv(stages[2], 128, 1), up(conv(middle, 128, 1))]), 128)
    found = [conv(conv(fine, 256, 3), 255, 1, act=None)]
    middle = five(net.concat([conv(fine, 256, 3, 2), middle]), 256)
    found.append(conv(conv(middle, 512, 3), 255, 1, act=None))
    coarse = five(net.concat([conv(middle, 512, 3, 2), x]), 512)
    found.append(conv(conv(coarse, 1024, 3), 255, 1, act=None))
    return found


def c3d(net: Network, x: Any) -> Any:
    """Eight convolutions of 3 x 3 x 3 (Tran et al., 2015)."""
    for width, depth, window in ((64, 1, (1, 2, 2)), (128, 1, 2), (256, 2, 2), (512, 2, 2)):
        for _ in range(depth):
            x = net.conv(x, width, 3)
        x = net.pool(x, window)
    x = net.pool(net.conv(net.conv(x, 512, 3), 512, 3), 2, 2, (0, 1, 1))
    x = net.emit(op.reshape(x, (1, -1)))
    for _ in range(2):
        x = net.emit(op.nn.relu(net.linear(x, 4096)))
    return net.emit(op.nn.softmax(net.linear(x, 487)))


def s3d(net: Network, x: Any) -> Any:
    """Inception blocks of separated space and time (Xie et al., 2018)."""

    def apart(x: Any, width: int, window: int, stride: int = 1) -> Any:
        y = net.conv(x, width, (1, window, window), (1, stride, stride))
        return net.conv(y, width, (window, 1, 1), (stride, 1, 1))

    def mixed(x: Any, a: int, b: int, b3: int, c: int, c3: int, d: int) -> Any:
        parts = [
            net.conv(x, a, 1),
            apart(net.conv(x, b, 1), b3, 3),
            apart(net.conv(x, c, 1), c3, 3),
            net.conv(net.pool(x, 3, 1, 1), d, 1),
        ]
        return net.concat(parts)

    x = net.pool(apart(x, 64, 7, 2), (1, 3, 3), (1, 2, 2), (0, 1, 1))
    x = net.pool(apart(net.conv(x, 64, 1), 192, 3), (1, 3, 3), (1, 2, 2), (0, 1, 1))
    x = mixed(mixed(x, 64, 96, 128, 16, 32, 32), 128, 128, 192, 32, 96, 64)
    x = mixed(net.pool(x, 3, 2, 1), 192, 96, 208, 16, 48, 64)
    x = mixed(mixed(x, 160, 112, 224, 24, 64, 64), 128, 128, 256, 24, 64, 64)
    x = mixed(mixed(x, 112, 144, 288, 32, 64, 64), 256, 160, 320, 32, 128, 128)
    x = mixed(net.pool(x, 2), 256, 160, 320, 32, 128, 128)
    x = mixed(x, 384, 192, 384, 48, 128, 128)
    x = net.pool(x, (2, 7, 7), 1, average=True)
    return net.emit(op.mean(net.conv(x, 400, 1, act=None), [2, 3, 4]))


def unet(net: Network, x: Any) -> Any:
    """Four levels of two convolutions each (Ronneberger et al., 2015)."""

    def two(x: Any, width: int) -> Any:
        return net.conv(net.conv(x, width, 3), width, 3)

    levels = []
    for width in (32, 64, 128, 256):
        x = two(x, width)
        levels.append(x)
        x = net.pool(x, 2)
    x = two(x, 512)
    for y in reversed(levels):
        width = int(y.ty.shape[1])
        kernel = net.weight(2 * width, width, 2, 2)
        x = net.emit(op.nn.conv2d_transpose(x, kernel, strides=(2, 2)))
        x = net.emit(op.add(x, net.weight(1, width, 1, 1)))
        x = two(net.concat([y, x]), width)
    return net.emit(op.sigmoid(net.conv(x, 1, 1, act=None)))


MODELS = {
    "EfficientNet-B0": Model(_zoo("efficientnet_b0"), 309, 97),
    "VGG-16": Model(_written(vgg16, 1, 3, 224, 224), 51, 17),
    "MobileNetV1-SSD": Model(_written(mobilenet_v1_ssd, 1, 3, 300, 300), 202, 71),
    "YOLO-V4": Model(_written(yolo_v4, 1, 3, 416, 416), 398, 135),
    "C3D": Model(_written(c3d, 1, 3, 16, 112, 112), 27, 16),
    "S3D": Model(_written(s3d, 1, 3, 64, 224, 224), 272, 98),
    "U-Net": Model(_written(unet, 1, 3, 256, 256), 292, 82),
    "TinyBERT": Model(
        _encoder("Bert", num_hidden_layers=4, hidden_size=312, intermediate_size=1200), 366, 74
    ),
    "DistilBERT": Model(_encoder("DistilBert"), 457, 109),
    "ALBERT": Model(
        _encoder("Albert", hidden_size=768, num_attention_heads=12, intermediate_size=3072),
        936,
        225,
    ),
    "BERT-base": Model(_zoo("bert_base"), 976, 216),
    "MobileBERT": Model(_encoder("MobileBert"), 2387, 510),
    "GPT-2": Model(_zoo("gpt2"), 2533, 254),
}
WRITTEN = ("VGG-16", "MobileNetV1-SSD", "YOLO-V4", "C3D", "S3D", "U-Net")  # without PyTorch
