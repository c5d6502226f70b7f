"""The distinct convolution layers of three networks, 224 x 224 images."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Layer:
    """A convolution of square images and windows."""

    # Input and output channels.
    c: int
    k: int
    size: int  # height and width of the image
    # Of the convolution.
    window: int = 1
    stride: int = 1
    padding: int = 0
    groups: int = 1

    @property
    def name(self) -> str:
        """A short name."""
        kind = f"{self.window}x{self.window}" + (f"/{self.stride}" if self.stride > 1 else "")
        kind += " depthwise" if self.is_depthwise else ""
        return f"{self.c}-{self.k} {self.size} {kind}"

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is a group."""
        return self.groups == self.c > 1

    @property
    def out_size(self) -> int:
        """Height and width of the result."""
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @property
    def flops(self) -> int:
        """Additions and multiplications."""
        return 2 * self.k * (self.c // self.groups) * (self.window * self.out_size) ** 2


def _resnet50() -> list[Layer]:
    layers = [Layer(3, 64, 224, 7, 2, 3)]
    c, size = 64, 56
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for number in range(blocks):
            stride = 2 if stage and not number else 1
            layers.append(Layer(c, width, size))
            layers.append(Layer(width, width, size, 3, stride, 1))
            if not number:
                layers.append(Layer(c, 4 * width, size, 1, stride))
            size //= stride
            layers.append(Layer(width, 4 * width, size))
            c = 4 * width
    return layers


def _vgg19() -> list[Layer]:
    layers, c, size = [], 3, 224
    for k, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers.append(Layer(c, k, size, 3, 1, 1))
            c = k
        size //= 2
    return layers


def _mobilenet_v2() -> list[Layer]:
    layers, c, size = [Layer(3, 32, 224, 3, 2, 1)], 32, 112
    settings = (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2),
        (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    )  # fmt: skip
    for expansion, k, count, first_stride in settings:
        for number in range(count):
            stride = 1 if number else first_stride
            wide = c * expansion
            if expansion > 1:
                layers.append(Layer(c, wide, size))
            layers.append(Layer(wide, wide, size, 3, stride, 1, wide))
            size //= stride
            layers.append(Layer(wide, k, size))
            c = k
    return [*layers, Layer(c, 1280, size)]


def _unet() -> list[Layer]:
    """List those of the zoo's ``unet2d``, 32 x 32 images."""
    sizes = ((64, 64, 32), (128, 64, 32), (192, 64, 32), (128, 128, 32), (64, 128, 16))
    sizes += ((128, 128, 16), (192, 128, 16), (256, 128, 16), (128, 128, 8), (256, 128, 8))
    return [Layer(c, k, size, 3, 1, 1) for c, k, size in sizes]


#: Layers of 3 x 3 windows that move by single pixels, of blocked images.
WINOGRAD = {
    name: [x for x in dict.fromkeys(layers) if x.window == 3 and x.stride == 1 and x.c > 3]
    for name, layers in (("VGG-19", _vgg19()), ("ResNet-50", _resnet50()), ("UNet", _unet()))
}
NETWORKS = {
    name: list(dict.fromkeys(layers))
    for name, layers in (
        ("ResNet-50", _resnet50()),
        ("VGG-19", _vgg19()),
        ("MobileNetV2", _mobilenet_v2()),
    )
}
