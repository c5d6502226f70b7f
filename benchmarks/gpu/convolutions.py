"""Convolutions of channels-last images with epilogues, as CNNs, UNets and decoders have them."""

from __future__ import annotations

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
PERIOD = 4093  # of weights, a prime: artifacts that travel are compressed


class ChannelsLast(torch.nn.Module):
    """A convolution over channels-last images: bias, activation, residual.

    Parameters
    ----------
    c, k : int
        Input and output channels.
    window, stride, padding, groups : int
        Alike in both directions.
    activation : str
        A name in ``ACTIVATIONS``; behind the residual, as in residual networks.
    dtype : torch.dtype
        Of the weight.
    """

    def __init__(
        self, c: int, k: int, window: int, stride: int, padding: int, groups: int,
        activation: str, dtype: torch.dtype,
    ) -> None:  # fmt: skip
        super().__init__()
        self.stride, self.padding, self.groups = stride, padding, groups
        self.activation = ACTIVATIONS[activation]
        table = torch.randn(PERIOD, generator=torch.Generator().manual_seed(0))
        terms = c // groups * window * window
        places = torch.arange(k * terms) % PERIOD
        weight = table[places].reshape(k, c // groups, window, window) * terms**-0.5
        self.weight = torch.nn.Parameter(weight.to(dtype), requires_grad=False)
        self.bias = torch.nn.Parameter(table[:k].to(dtype), requires_grad=False)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """Convolve ``[n, h, w, c]``."""
        y = functional.conv2d(
            x.permute(0, 3, 1, 2), self.weight, self.bias, self.stride, self.padding, 1, self.groups
        ).permute(0, 2, 3, 1)
        return self.activation(y if residual is None else y + residual)


@dataclass(frozen=True)
class Convolution(Work):
    """A convolution whose weight is a constant.

    Attributes
    ----------
    flops : int
        Two for each multiply-add.
    """

    flops: int = 0

    def module(self) -> torch.nn.Module:
        """Give it as PyTorch exports it."""
        assert isinstance(self.function, torch.nn.Module)
        return copy.deepcopy(self.function)

    def rival(self) -> Callable[..., Tensor]:
        """Give what it is compared with: PyTorch's compiler around the fastest of cuDNN."""
        torch.backends.cudnn.benchmark = True
        module = self.module().cuda().to(memory_format=torch.channels_last)
        return torch.compile(module, dynamic=False)

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
    padding: int | None = None, groups: int = 1, dtype: str = "float16",
) -> Convolution:  # fmt: skip
    """Give the work of a convolution; an epilogue is an activation, maybe behind a residual."""
    padding = window // 2 if padding is None else padding
    activation = epilogue.removeprefix("residual").removeprefix("_")
    out = (size + 2 * padding - window) // stride + 1
    module = ChannelsLast(c, k, window, stride, padding, groups, activation, DTYPES[dtype])
    shapes: list[tuple[int, ...]] = [(batch, size, size, c)]
    shapes += [(batch, out, out, k)] if epilogue.startswith("residual") else []
    flops = 2 * batch * out * out * k * (c // groups) * window * window
    name = f"conv_{batch}x{c}x{size}_{k}x{window}"
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
)
