"""An interpreter of AMD machine code: gfx90a, gfx942 and gfx1100, without a device.

The overview is in the README beside.
"""

from .clocks import Loop, loops
from .machine import Launch, Mistake
from .run import load, run
from .text import Unsupported

__all__ = ["Launch", "Loop", "Mistake", "Unsupported", "load", "loops", "run"]
