"""The choice of a layout for every tensor between groups, by the smallest cost of all kernels.

Of claims (:mod:`.network`); where a profile database is there, it is asked convolution by
convolution whether the other layout takes less (:mod:`.measured`). Not in densely connected
networks, where a choice takes seconds (:mod:`.minimize`).
"""

from __future__ import annotations

from ..fusion.claims import ClaimBook
from ..fusion.profile import current_profile
from ..program.layouts import layout_for
from .calls import Calls, images_around_convolutions
from .choice import Choice
from .measured import measured
from .network import Network

# Of the time, below which layouts stay as they are. What is claimed for the layout of the graph is
# rather too little: of VGG-19 blocks save 1 % so, and 1 to 7 % of its 3 x 3 layers on a Zen 5 core.
GAIN = 0.005


def choose(calls: Calls, book: ClaimBook) -> Choice | None:
    """Choose layouts; ``None`` where the layout of the graph does as well."""
    images = {
        t: layout
        for t in images_around_convolutions(calls)
        if (layout := layout_for(t.shape, book.device)) is not None
    }
    if not images:
        return None
    network = Network(calls, images, book)
    if not network.profits():
        return None
    values = network.minimum()
    if values is None or network.total(values) > network.total(network.plain) * (1 - GAIN):
        values = network.plain
    profile = current_profile()
    if profile is not None and network.is_exact:  # a minimum for each convolution
        values = measured(network, values, profile, book)
    return None if values == network.plain else network.choice(values)
