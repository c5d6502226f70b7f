"""Whether a convolution on a CPU takes Winograd's algorithm: permission, shape, estimated gain.

Results are less exact relative to the products of one result, and an infinity or NaN spoils all
results of a tile: the user has to allow approximate results.
"""

from dataclasses import dataclass

from tvm import ir, tirx

from ....core.flags import APPROXIMATE
from ....core.tir.loops import constant
from ....device import Device
from ....program.stage import Axis
from ...contraction.cpu.blocking import Machine
from ..dense.config import ConvConfig
from ..problem.problem import ConvProblem
from ..problem.result_layout import is_contiguous
from .config import WinogradConfig, direct_cycles, winograd_default
from .transforms import WINDOW

LEAST_GAIN = 1.3  # estimated, of what is used: of small images estimates were as much too large


@dataclass(frozen=True)
class WinogradChoice:
    """A verdict."""

    config: WinogradConfig | None  # the configuration, where it is used
    # How many times as fast as the direct kernel it was estimated to be; 1 where it is not used.
    gain: float
    # The reason.
    code: str
    sentence: str


def winograd_choice(
    problem: ConvProblem, direct: ConvConfig, device: Device
) -> WinogradChoice | None:
    """Decide; ``None`` about convolutions that are not 3 x 3, and where it would not pay anyway.

    Parameters
    ----------
    direct
        The configuration of its direct kernel.
    device
        A CPU, with what the user allowed.
    """
    if len(problem.window) != 2:
        return None
    window = winograd_window(problem, Machine.of(device).unit.lanes)
    found = None if isinstance(window, str) else winograd_default(problem, device)
    if found is None:
        reason = window if isinstance(window, str) else "no register tile fits its channels"
        sentence = f"Winograd's algorithm does not apply to this convolution: {reason}."
        return WinogradChoice(None, 1.0, "no_winograd", sentence) if device.approximates else None
    config, cycles = found
    gain = direct_cycles(direct, problem, device) / cycles
    estimate = f"{config.name} is estimated to be {gain:.2f} times as fast as the direct kernel"
    if gain < LEAST_GAIN:
        sentence = f"{estimate}, less than the required {LEAST_GAIN}."
        choice = WinogradChoice(None, 1.0, "no_winograd_gain", sentence)
        return choice if device.approximates else None
    if not device.approximates:
        sentence = f"{estimate}, and less exact: it is allowed by --allow {APPROXIMATE} only."
        return WinogradChoice(None, 1.0, "needs_flag", sentence)
    return WinogradChoice(config, gain, "winograd", f"{estimate}.")


# Whether Winograd's algorithm computes a convolution: its window and the image's rows, columns.
@dataclass(frozen=True)
class WinogradWindow:
    """Rows and columns of a 3 x 3 window that moves by single pixels."""

    axes: tuple[Axis, Axis]  # of the window: rows, columns
    image: tuple[ir.Var, ir.Var]  # the axes of the image that they move along
    # Begin and end of the part of each that is no padding.
    inside: tuple[tuple[int, int], tuple[int, int]]


def winograd_window(problem: ConvProblem, lanes: int) -> WinogradWindow | str:
    """Read a convolution; a sentence where Winograd's algorithm is not for it.

    Parameters
    ----------
    lanes
        float32 elements of a vector.
    """
    if problem.c is None or problem.groups is not None:
        return "its channels are in groups"
    if problem.words is not None:
        return "a dot-product instruction multiplies its channels"
    if not problem.image.has_zeros:
        return "the padding of its image is not zero"
    if problem.block % lanes:
        return "channels of its image are not contiguous in vectors"
    if not all(is_contiguous(r, problem, lanes) for r in problem.contraction.results):
        return "channels of its results are not contiguous"
    initial = problem.contraction.initial
    if not isinstance(initial, tirx.FloatImm) or float(initial.value) != 0:
        return "its sums do not begin with zero"
    sizes = {a.var: a for a in problem.window}
    found = []
    for pixel in (problem.y, problem.x):
        for axis, atoms in problem.image.sums.items():
            window = [sizes[v] for v in atoms if v in sizes]
            if pixel.var in atoms and len(atoms) == 2 and set(atoms.values()) == {1}:
                found.append((axis, *window))
    if len(found) != 2 or len(problem.window) != 2:
        return "its window is not 3 x 3 with stride 1"
    if any(constant(a.extent) != WINDOW for a in problem.window):
        return "its window is not 3 x 3 with stride 1"
    image = found[0][0], found[1][0]
    if not set(problem.image.inside) <= set(image):
        return "its image is padded along other axes"
    extents = {a.var: constant(a.extent) or 0 for a in problem.image.axes}
    inside = tuple(problem.image.inside.get(v, (0, extents[v])) for v in image)
    return WinogradWindow((found[0][1], found[1][1]), image, (inside[0], inside[1]))
