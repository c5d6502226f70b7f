"""Whether a convolution on a CPU takes Winograd's algorithm: permission, shape, estimated gain.

Results are less exact relative to the products of one result, and an infinity or NaN spoils all
results of a tile: the user has to allow approximate results.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...core.flags import APPROXIMATE
from ...device import Device
from ..contraction.cpu.blocking import Machine
from .config import ConvConfig
from .problem import ConvProblem
from .winograd_config import WinogradConfig, direct_cycles, winograd_default
from .winograd_window import winograd_window

LEAST_GAIN = 1.3  # estimated, of what is used: of small images estimates were as much too large


@dataclass(frozen=True)
class WinogradChoice:
    """A verdict.

    Attributes
    ----------
    config : WinogradConfig or None
        The configuration, where it is used.
    gain : float
        How many times as fast as the direct kernel it was estimated to be; 1 where it is not used.
    code, sentence : str
        The reason.
    """

    config: WinogradConfig | None
    gain: float
    code: str
    sentence: str


def winograd_choice(
    problem: ConvProblem, direct: ConvConfig, device: Device
) -> WinogradChoice | None:
    """Decide; ``None`` about convolutions that are not 3 x 3.

    Parameters
    ----------
    problem : ConvProblem
        The convolution.
    direct : ConvConfig
        The configuration of its direct kernel.
    device : Device
        A CPU, with what the user allowed.
    """
    if len(problem.window) != 2:
        return None
    window = winograd_window(problem, Machine.of(device).unit.lanes)
    found = None if isinstance(window, str) else winograd_default(problem, device)
    if found is None:
        reason = window if isinstance(window, str) else "no register tile fits its channels"
        sentence = f"Winograd's algorithm is not for this convolution: {reason}."
        return WinogradChoice(None, 1.0, "no_winograd", sentence) if device.approximates else None
    config, cycles = found
    gain = direct_cycles(direct, problem, device) / cycles
    estimate = f"{config.name} is estimated to be {gain:.2f} times as fast as the direct kernel"
    if gain < LEAST_GAIN:
        sentence = f"{estimate}, less than the {LEAST_GAIN} that it has to be."
        return WinogradChoice(None, 1.0, "no_winograd_gain", sentence)
    if not device.approximates:
        sentence = f"{estimate}, and less exact: it is allowed by --allow {APPROXIMATE} only."
        return WinogradChoice(None, 1.0, "needs_flag", sentence)
    return WinogradChoice(config, gain, "winograd", f"{estimate}.")
