"""Convolutions of channels-last images with epilogues, as CNNs, UNets and decoders have them."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .works import DTYPES, Work

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda x: x,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "silu": functional.silu,
    "gelu": functional.gelu,
}
CONTIGUOUS = "contiguous"  # the peer whose channels lie before pixels
PERIOD = 4093  # of weights, a prime: artifacts that travel are compressed


class ChannelsLast(torch.nn.Module):
    """A convolution over channels-last images: bias, activation, residual.

    Parameters
    ----------
    c, k
        Input and output channels.
    window, stride, padding, groups
        Alike in all directions.
    activation
        A name in ``ACTIVATIONS``; behind the residual, as in residual networks.
    rank
        Directions: of sequences 1, of images 2, of volumes 3.
    is_transposed
        Whether it is a transposed convolution, of one group.
    """

    def __init__(
        self, c: int, k: int, window: int, stride: int, padding: int, groups: int,
        activation: str, dtype: torch.dtype, rank: int = 2, is_transposed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.options = {"stride": stride, "padding": padding, "groups": groups}
        self.convolve = getattr(functional, f"conv{'_transpose' * is_transposed}{rank}d")
        self.activation = ACTIVATIONS[activation]
        table = torch.randn(PERIOD, generator=torch.Generator().manual_seed(0))
        terms = c // groups * window**rank
        places = torch.arange(k * terms) % PERIOD
        channels = (c, k) if is_transposed else (k, c // groups)
        weight = table[places].reshape(*channels, *[window] * rank) * terms**-0.5
        self.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        self.bias = torch.nn.Parameter(table[:k].to(dtype), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Convolve ``[n, h, w, c]``, or of other ranks alike."""
        image = x.movedim(-1, 1)
        y = self.convolve(image, self.weight, self.bias, **self.options).movedim(1, -1)
        return self.activation(y if residual is None else y + residual)


@dataclass(frozen=True)
class Convolution(Work):
    """A convolution whose weight is a constant."""

    flops: int = 0  # two for each multiply-add

    def module(self) -> torch.nn.Module:
        """Export the workload with PyTorch."""
        assert isinstance(self.function, torch.nn.Module)
        return copy.deepcopy(self.function)

    def rival(self, is_channels_last: bool = True) -> Callable[..., Tensor]:
        """Return the baseline: PyTorch's compiler around cuDNN's fastest algorithm."""
        torch.backends.cudnn.benchmark = True
        module = self.module().cuda()
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        found = formats.get(len(self.shapes[0])) if is_channels_last else None
        module = module if found is None else module.to(memory_format=found)
        return torch.compile(module, dynamic=False)

    def peers(self) -> dict[str, Callable[..., Tensor]]:
        """Return PyTorch's compiler with images in either layout."""
        return {"inductor": self.rival(), CONTIGUOUS: self.rival(is_channels_last=False)}

    def given(self, side: str, arguments: list[Tensor]) -> list[Tensor]:
        """Lay images out with channels before pixels, for the peer that has them so."""
        if side != CONTIGUOUS:
            return arguments
        return [x.movedim(-1, 1).contiguous().movedim(1, -1) for x in arguments]

    def reference(self, *arguments: Tensor) -> Tensor:
        """Compute it from arguments in float64."""
        first = arguments[0]
        return self.module().to(first.device, first.dtype)(*arguments)

    def touched(self, arguments: list[Tensor], results: list[Tensor]) -> int:
        """Count the bytes that have to be read and written, the weight's included."""
        weights = sum(t.nbytes for t in self.module().parameters())
        return super().touched(arguments, results) + weights


def convolution(
    batch: int, c: int, size: int, k: int, window: int, stride: int, epilogue: str,
    padding: int | None = None, groups: int = 1, dtype: str = "float16", rank: int = 2,
    is_transposed: bool = False,
) -> Convolution:  # fmt: skip
    """Return a convolution workload; the epilogue is an activation, maybe after a residual."""
    padding = window // 2 if padding is None else padding
    activation = epilogue.removeprefix("residual").removeprefix("_")
    out = (size + 2 * padding - window) // stride + 1
    pixels = out
    if is_transposed:
        out, pixels = (size - 1) * stride - 2 * padding + window, size
    kinds = rank, is_transposed
    module = ChannelsLast(c, k, window, stride, padding, groups, activation, DTYPES[dtype], *kinds)
    shapes: list[tuple[int, ...]] = [(batch, *[size] * rank, c)]
    shapes += [(batch, *[out] * rank, k)] if epilogue.startswith("residual") else []
    flops = 2 * batch * pixels**rank * k * (c // groups) * window**rank
    name = "conv" + "_transpose" * is_transposed + ("" if rank == 2 else f"{rank}d")
    name += f"_{batch}x{c}x{size}_{k}x{window}"
    name += "".join([f"_s{stride}"] * (stride > 1) + [f"_g{groups}"] * (groups > 1))
    name += f"_{epilogue}" if epilogue else ""
    return Convolution(name, module, tuple(shapes), dtype, flops=flops)


# (batch, channels, size, output channels, window, stride, epilogue)
CONVOLUTIONS = (
    # ResNet-50
    convolution(1, 64, 56, 64, 3, 1, "relu"),
    convolution(1, 64, 56, 256, 1, 1, "residual_relu"),
    convolution(1, 128, 28, 128, 3, 1, "relu"),
    convolution(1, 256, 28, 256, 3, 2, "relu"),
    convolution(1, 256, 14, 256, 3, 1, "relu"),
    convolution(1, 1024, 14, 2048, 1, 2, ""),
    convolution(1, 512, 7, 512, 3, 1, "relu"),
    convolution(8, 128, 28, 128, 3, 1, "relu"),
    convolution(8, 512, 7, 512, 3, 1, "relu"),
    # MobileNetV2
    convolution(1, 24, 56, 144, 1, 1, "relu6"),
    convolution(1, 384, 14, 96, 1, 1, ""),
    convolution(1, 160, 7, 960, 1, 1, "relu6"),
    # UNet of SD-1.5, two latents
    convolution(2, 320, 64, 320, 3, 1, "residual"),
    convolution(2, 640, 32, 640, 3, 1, "residual"),
    convolution(2, 1280, 16, 1280, 3, 1, "residual"),
    convolution(2, 1280, 8, 1280, 3, 1, ""),
    # VAE decoder
    convolution(1, 512, 64, 512, 3, 1, "residual"),
    convolution(1, 256, 256, 256, 3, 1, ""),
    convolution(1, 128, 512, 128, 3, 1, "residual"),
    # ConvNeXt: patches, and a pointwise convolution
    convolution(1, 96, 56, 192, 2, 2, "", padding=0),
    convolution(1, 96, 56, 384, 1, 1, "gelu"),
    # of groups: ResNeXt-50 32x4d, RegNetY-1.6GF, ShuffleNet, AlexNet
    convolution(1, 128, 56, 128, 3, 1, "relu", groups=32),
    convolution(1, 256, 28, 256, 3, 1, "relu", groups=32),
    convolution(1, 1024, 7, 1024, 3, 1, "relu", groups=32),
    convolution(8, 512, 14, 512, 3, 1, "relu", groups=32),
    convolution(1, 336, 14, 336, 3, 1, "relu", groups=14),
    convolution(1, 240, 28, 240, 1, 1, "relu", groups=3),
    convolution(1, 96, 27, 256, 5, 1, "relu", groups=2),
    # depthwise: ConvNeXt
    convolution(1, 96, 56, 96, 7, 1, "", groups=96),
    convolution(1, 384, 14, 384, 7, 1, "", groups=384),
    convolution(8, 192, 28, 192, 7, 1, "", groups=192),
    # transposed: a generator of images, a UNet's upsampling
    convolution(1, 256, 32, 128, 4, 2, "relu", padding=1, is_transposed=True),
    convolution(1, 512, 28, 256, 2, 2, "", padding=0, is_transposed=True),
    # of sequences: Whisper's and wav2vec's encoders; of volumes: residual networks, a UNet
    convolution(1, 384, 3000, 384, 3, 2, "gelu", rank=1),
    convolution(1, 512, 3199, 512, 3, 2, "gelu", padding=0, rank=1),
    convolution(1, 256, 28, 256, 3, 1, "relu", rank=3),
    convolution(1, 64, 56, 64, 3, 2, "relu", rank=3),
    convolution(1, 32, 64, 32, 3, 1, "relu", rank=3),
)
