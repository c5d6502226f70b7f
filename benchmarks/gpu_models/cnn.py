"""Image classifiers in plain PyTorch: ResNet-50, MobileNetV2, EfficientNet-B0, ConvNeXt-tiny.

Written out because the machine that times them has no torchvision. Shapes are those of the papers
at 224 x 224 pixels and 1,000 classes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

CLASSES = 1000


def convolution(
    inputs: int,
    outputs: int,
    size: int,
    stride: int = 1,
    groups: int = 1,
    activation: Callable[[], nn.Module] | None = None,
) -> nn.Sequential:
    """Make a convolution, with the batch norm behind it folded in, and an activation."""
    layer = nn.Conv2d(inputs, outputs, size, stride, (size - 1) // 2, groups=groups)
    return nn.Sequential(layer, *([activation()] if activation else []))


class Bottleneck(nn.Module):
    """ResNet's block: 1x1, 3x3 and 1x1 convolutions and a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(
            convolution(inputs, width, 1, activation=nn.ReLU),
            convolution(width, width, 3, stride, activation=nn.ReLU),
            convolution(width, outputs, 1),
        )
        is_plain = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if is_plain else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return torch.relu(self.body(x) + self.shortcut(x))


class Classifier(nn.Module):
    """Convolutions, the mean over pixels, and a matrix product."""

    def __init__(self, body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(channels, CLASSES)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Classify images."""
        return self.head(self.body(pixel_values).mean((2, 3)))


def resnet50() -> nn.Module:
    """Make ResNet-50 (He et al. 2015), strides in the 3x3 convolutions."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2, activation=nn.ReLU)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for stage, count in enumerate((3, 4, 6, 3)):
        for number in range(count):
            width = 64 << stage
            layers.append(Bottleneck(inputs, width, 2 if stage and not number else 1))
            inputs = 4 * width
    return Classifier(nn.Sequential(*layers), inputs)


class SqueezeExcite(nn.Module):
    """Channels scaled by a small network of their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce, self.expand = (
            nn.Conv2d(channels, squeezed, 1),
            nn.Conv2d(squeezed, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        scale = nn.functional.silu(self.reduce(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.expand(scale))


class InvertedResidual(nn.Module):
    """1x1 expansion, depthwise convolution, 1x1 projection, with a shortcut where shapes allow."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        size: int,
        stride: int,
        expansion: int,
        activation: Callable[[], nn.Module],
        squeeze: bool,
    ) -> None:
        super().__init__()
        width = inputs * expansion
        layers: list[nn.Module] = []
        if expansion > 1:
            layers.append(convolution(inputs, width, 1, activation=activation))
        layers.append(convolution(width, width, size, stride, width, activation))
        if squeeze:
            layers.append(SqueezeExcite(width, max(1, inputs // 4)))
        layers.append(convolution(width, outputs, 1))
        self.body = nn.Sequential(*layers)
        self.is_residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return x + self.body(x) if self.is_residual else self.body(x)


LAST = 1280  # channels behind all stages
_Stages = Sequence[tuple[int, int, int, int, int]]  # expansion, channels, count, stride, window


def _inverted(
    first: int, stages: _Stages, activation: Callable[[], nn.Module], squeeze: bool
) -> nn.Module:
    layers: list[nn.Module] = [convolution(3, first, 3, 2, activation=activation)]
    inputs = first
    for expansion, channels, count, stride, size in stages:
        for number in range(count):
            own = stride if number == 0 else 1
            layers.append(
                InvertedResidual(inputs, channels, size, own, expansion, activation, squeeze)
            )
            inputs = channels
    layers.append(convolution(inputs, LAST, 1, activation=activation))
    return Classifier(nn.Sequential(*layers), LAST)


def mobilenet_v2() -> nn.Module:
    """Make MobileNetV2 (Sandler et al. 2018), width 1."""
    stages = [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 32, 3, 2, 3),
        (6, 64, 4, 2, 3),
        (6, 96, 3, 1, 3),
        (6, 160, 3, 2, 3),
        (6, 320, 1, 1, 3),
    ]
    return _inverted(32, stages, nn.ReLU6, squeeze=False)


def efficientnet_b0() -> nn.Module:
    """Make EfficientNet-B0 (Tan and Le 2019)."""
    stages = [
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    ]
    return _inverted(32, stages, nn.SiLU, squeeze=True)


class ChannelNorm(nn.Module):
    """Layer norm over the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize every pixel."""
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """7x7 depthwise convolution, layer norm, two matrix products with GELU, a scaled shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand, self.project = (
            nn.Linear(channels, 4 * channels),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.project(nn.functional.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class ConvNext(nn.Module):
    """ConvNeXt (Liu et al. 2022)."""

    def __init__(self, depths: Sequence[int], widths: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
        before = widths[0]
        for depth, width in zip(depths, widths, strict=True):
            if width != before:
                layers += [ChannelNorm(before), nn.Conv2d(before, width, 2, 2)]
            layers += [ConvNextBlock(width) for _ in range(depth)]
            before = width
        self.body = nn.Sequential(*layers)
        self.norm, self.head = nn.LayerNorm(before, eps=1e-6), nn.Linear(before, CLASSES)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Classify images."""
        return self.head(self.norm(self.body(pixel_values).mean((2, 3))))


def convnext_tiny() -> nn.Module:
    """Make ConvNeXt-T."""
    return ConvNext((3, 3, 9, 3), (96, 192, 384, 768))
