"""Networks of images and sequences in plain PyTorch, with blocks as torchvision has them."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .model import Example, Spec


def _conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class _Excitation(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 6, 1), nn.Conv2d(6, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.up(self.down(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class _RegNet(nn.Module):
    """A residual block of grouped convolutions with squeeze and excitation."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            _conv(inputs, outputs, 1),
            _conv(outputs, outputs, 3, stride, outputs // 8),
            _Excitation(outputs),
            nn.Conv2d(outputs, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.skip(x)).relu()


class _Dense(nn.Module):
    """Layers that see the results of all before them."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.layers = nn.ModuleList(_conv(inputs + 8 * i, 8) for i in range(3))
        self.transition = _conv(inputs + 24, outputs, 1)
        self.pool = nn.AvgPool2d(stride)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return self.pool(self.transition(x))


class _Shuffle(nn.Module):
    """Two halves of channels, interleaved."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        half = outputs // 2
        self.widen = _conv(inputs, outputs, 1, stride)
        depthwise = nn.Conv2d(half, half, 3, 1, 1, groups=half)
        self.body = nn.Sequential(_conv(half, half, 1), depthwise, _conv(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.widen(x).chunk(2, 1)
        x = torch.cat([left, self.body(right)], 1)
        batch, channels, height, width = x.shape
        return x.view(batch, 2, channels // 2, height, width).transpose(1, 2).flatten(1, 2)


class _Inception(nn.Module):
    """Branches of several window sizes, and of pooling."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        part = outputs // 4
        self.branches = nn.ModuleList(
            nn.Sequential(_conv(inputs, part, 1), _conv(part, part, size, stride))
            for size in (1, 3, 5)
        )
        pool = nn.MaxPool2d(3, stride, 1, ceil_mode=False)
        self.branches.append(nn.Sequential(pool, _conv(inputs, part, 1)))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _classifier(block: Callable[[int, int, int], nn.Module]) -> Spec:
    def build() -> Example:
        module = nn.Sequential(
            _conv(3, 16, 7, 2),
            nn.MaxPool2d(3, 2, 1),
            block(16, 24, 1),
            block(24, 32, 2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 7),
        )
        return _Input(module), {"x": torch.randn(2, 3, 67, 61)}

    return Spec(build)


class _Input(nn.Module):
    """A module whose input is called ``x``."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


class _UNet(nn.Module):
    """Two levels, with transposed convolutions upwards."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = _conv(3, 12), _conv(12, 24), _conv(24, 12)
        self.up = nn.ConvTranspose2d(24, 12, 2, 2)
        self.last = nn.Conv2d(12, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        top = self.first(x)
        low = self.second(nn.functional.max_pool2d(top, 2))
        return self.last(self.third(torch.cat([top, self.up(low)], 1)))


class _Tagger(nn.Module):
    """Embeddings, a recurrent network in both directions, a linear layer."""

    def __init__(self, kind: Callable[..., nn.Module]):
        super().__init__()
        self.embed = nn.Embedding(99, 24)
        self.recurrent = kind(24, 20, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(40, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embed(x))[0])


def _tagger(kind: Callable[..., nn.Module]) -> Spec:
    return Spec(lambda: (_Tagger(kind), {"x": torch.randint(99, (2, 11))}))


def _transformer() -> Example:
    layer = nn.TransformerEncoderLayer(48, 4, 76, batch_first=True, norm_first=True)
    module = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return _Input(module), {"x": torch.randn(2, 13, 48)}


MODELS: dict[str, Spec] = {
    "regnet": _classifier(_RegNet),
    "densenet": _classifier(_Dense),
    "shufflenet": _classifier(_Shuffle),
    "inception": _classifier(_Inception),
    "unet": Spec(lambda: (_UNet(), {"x": torch.randn(1, 3, 34, 46)})),
    "nn.TransformerEncoder": Spec(_transformer),
    "nn.LSTM tagger": _tagger(nn.LSTM),
    "nn.GRU tagger": _tagger(nn.GRU),
}
