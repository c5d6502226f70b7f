"""A diffusion UNet and a VAE decoder in plain PyTorch, in the shapes of Stable Diffusion 1.5.

Written out because the machine that times them has no diffusers.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

GROUPS, HEADS = 32, 8
CONTEXT, TOKENS = 768, 77  # of the text that cross-attention reads
WIDTHS = (320, 640, 1280, 1280)
LATENTS = 4


class ResidualBlock(nn.Module):
    """Two convolutions behind group norms with SiLU; the embedded time is added in between."""

    def __init__(self, inputs: int, outputs: int, embedded: int | None, eps: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = (
            nn.GroupNorm(GROUPS, inputs, eps),
            nn.GroupNorm(GROUPS, outputs, eps),
        )
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = None if embedded is None else nn.Linear(embedded, outputs)
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """Apply the block."""
        y = self.conv1(functional.silu(self.norm1(x)))
        if self.time is not None and time is not None:
            y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(functional.silu(self.norm2(y)))


class Attention(nn.Module):
    """Multi-head attention of tokens to themselves or to a context."""

    def __init__(self, width: int, context: int | None, heads: int, bias: bool = False) -> None:
        super().__init__()
        self.heads, inner = heads, context or width
        self.query = nn.Linear(width, width, bias)
        self.key, self.value = nn.Linear(inner, width, bias), nn.Linear(inner, width, bias)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """Attend; ``(batch, tokens, width)``."""
        context = x if context is None else context
        q, k, v = (
            f(t).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for f, t in ((self.query, x), (self.key, context), (self.value, context))
        )
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Self-attention, cross-attention and a gated feed-forward network over the pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, width, 1e-6)
        self.into, self.out_of = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, None, HEADS), Attention(width, CONTEXT, HEADS)
        self.gate, self.project = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        """Apply the block to an image."""
        n, c, h, w = x.shape
        y = self.into(self.norm(x)).permute(0, 2, 3, 1).reshape(n, h * w, c)
        y = y + self.own(self.norms[0](y))
        y = y + self.cross(self.norms[1](y), context)
        linear, gate = self.gate(self.norms[2](y)).chunk(2, -1)
        y = y + self.project(linear * functional.gelu(gate))
        return x + self.out_of(y.reshape(n, h, w, c).permute(0, 3, 1, 2))


class Level(nn.Module):
    """Residual blocks of one resolution, each with a transformer block if there are any."""

    def __init__(self, channels: list[tuple[int, int]], embedded: int, attends: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(ResidualBlock(i, o, embedded, 1e-5) for i, o in channels)
        self.attention = nn.ModuleList(TransformerBlock(o) for _, o in channels if attends)


class UNet(nn.Module):
    """Stable Diffusion 1.5's network: 860 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        first, embedded = WIDTHS[0], 4 * WIDTHS[0]
        self.time = nn.Sequential(
            nn.Linear(first, embedded), nn.SiLU(), nn.Linear(embedded, embedded)
        )
        self.first = nn.Conv2d(LATENTS, first, 3, padding=1)
        attends = (True, True, True, False)
        skips, before, down = [first], first, []
        for level, width in enumerate(WIDTHS):
            down.append(Level([(before, width), (width, width)], embedded, attends[level]))
            skips += [width, width] + ([width] if level < 3 else [])
            before = width
        self.down = nn.ModuleList(down)
        self.smaller = nn.ModuleList(nn.Conv2d(w, w, 3, 2, 1) for w in WIDTHS[:3])
        self.middle = Level([(before, before)], embedded, True)
        self.middle_last = ResidualBlock(before, before, embedded, 1e-5)
        up = []
        for level in reversed(range(4)):
            width, channels = WIDTHS[level], []
            for _ in range(3):
                channels.append((before + skips.pop(), width))
                before = width
            up.append(Level(channels, embedded, attends[level]))
        self.up = nn.ModuleList(up)
        self.larger = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in WIDTHS[:0:-1])
        self.norm = nn.GroupNorm(GROUPS, before, 1e-5)
        self.last = nn.Conv2d(before, LATENTS, 3, padding=1)

    def forward(self, sample: Tensor, angles: Tensor, context: Tensor) -> Tensor:
        """Predict the noise of latents; ``angles`` are the sinusoids of the time step."""
        time = self.time(angles)
        x = self.first(sample)
        skips = [x]
        for number, level in enumerate(self.down):
            x = self._level(level, x, time, context, None, skips)
            if number < 3:
                x = self.smaller[number](x)
                skips.append(x)
        x = self._level(self.middle, x, time, context)
        x = self.middle_last(x, time)
        for number, level in enumerate(self.up):
            x = self._level(level, x, time, context, skips)
            if number < 3:
                x = self.larger[number](functional.interpolate(x, scale_factor=2.0))
        return self.last(functional.silu(self.norm(x)))

    @staticmethod
    def _level(
        level: Level,
        x: Tensor,
        time: Tensor,
        context: Tensor,
        joined: list[Tensor] | None = None,
        kept: list[Tensor] | None = None,
    ) -> Tensor:
        for number, block in enumerate(level.blocks):
            x = block(x if joined is None else torch.cat([x, joined.pop()], 1), time)
            if len(level.attention):
                x = level.attention[number](x, context)
            if kept is not None:
                kept.append(x)
        return x


def sinusoids(step: float, batch: int) -> Tensor:
    """Embed a time step."""
    half = WIDTHS[0] // 2
    angles = step * torch.exp(-math.log(10000) * torch.arange(half) / half)
    return torch.cat([angles.cos(), angles.sin()])[None].repeat(batch, 1)


class PixelAttention(nn.Module):
    """Single-head attention over the pixels of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attention = (
            nn.GroupNorm(GROUPS, width, 1e-6),
            Attention(width, None, 1, True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Attend."""
        y = self.attention(self.norm(x).flatten(2).transpose(1, 2))
        return x + y.transpose(1, 2).reshape(x.shape)


class Decoder(nn.Module):
    """Stable Diffusion's VAE decoder: latents to an image of eight times their size."""

    def __init__(self) -> None:
        super().__init__()
        widths = (512, 512, 256, 128)
        self.first = nn.Sequential(
            nn.Conv2d(LATENTS, LATENTS, 1), nn.Conv2d(LATENTS, widths[0], 3, padding=1)
        )
        layers: list[nn.Module] = [
            ResidualBlock(512, 512, None, 1e-6),
            PixelAttention(512),
            ResidualBlock(512, 512, None, 1e-6),
        ]
        before = widths[0]
        for number, width in enumerate(widths):
            for _ in range(3):
                layers.append(ResidualBlock(before, width, None, 1e-6))
                before = width
            if number < 3:
                layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(width, width, 3, padding=1)]
        layers += [
            nn.GroupNorm(GROUPS, before, 1e-6),
            nn.SiLU(),
            nn.Conv2d(before, 3, 3, padding=1),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, latents: Tensor) -> Tensor:
        """Decode."""
        return self.layers(self.first(latents))
