"""An interpreter of AMD machine code: gfx90a, gfx942 and gfx1100, without a device.

The overview is in the README here.
"""

from .clocks import Span, loops, products, whole
from .machine import Launch, Mistake
from .run import load, run
from .text import Unsupported

__all__ = ["Launch", "Mistake", "Span", "Unsupported", "load", "loops", "products", "run", "whole"]
