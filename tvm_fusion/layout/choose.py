"""The choice of a layout for every tensor between groups, by the smallest cost of all kernels.

Of claims (:mod:`.network`); where a profile database is there, it is asked convolution by
convolution whether the other layout takes less. Not in densely connected networks, where a choice
takes seconds (:mod:`.minimize`).
"""

from __future__ import annotations

import math

from ..core.decisions import record
from ..fusion.claims import FAR, NOISE, ClaimBook
from ..fusion.cost import Estimate
from ..fusion.profile import Profile, current_profile
from ..program.layouts import layout_for
from .alternatives import alternatives
from .calls import Calls, images_around_convolutions, is_convolution
from .choice import Choice
from .network import Network, Values
from .record import comparison
from .states import MOST_IMAGES

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


# Layouts of convolutions by the profile database: what is measured overturns what is claimed.
#
#   for each convolution, in order:
#     the best choice in which its images are as the graph has them, or else all in their layouts
#     ask about what differs:  groups as they are chosen, with the layout kernels of their images
#                              the same as that choice has them
#     the latter takes less:   go on from there
#
# What differs may be more than the convolution: what reads or writes its images goes with it where
# that is cheaper than a layout kernel between the two.
def measured(network: Network, values: Values, profile: Profile, book: ClaimBook) -> Values:
    """Let a profile database change a choice.

    Parameters
    ----------
    network : Network
        Convolutions whose layouts were changed are held to them behind this.
    """
    choice = network.choice(values)
    for k, (call, costs, _) in enumerate(network.calls):
        if not is_convolution(call) or len(costs.images) > MOST_IMAGES:
            continue
        used = network.used(k, values)
        for other in (costs.plain, costs.all):
            if other == used or math.isinf(costs.ask(other)):
                continue
            network.hold(k, costs.held(other))
            found = network.minimum()
            if found is not None and math.isfinite(network.total(found)):
                changed = network.choice(found)
                estimates = _estimates(network, choice, changed, profile, book)
                if estimates is not None:
                    now, then = estimates
                    is_less = now.source == "measured" and then.us < now.us * (1 - NOISE)
                    names = [costs.name(one) for one in (used, other)]
                    record(comparison(call, names, estimates, is_less))
                    if is_less:
                        values, choice = found, changed
                        break
            network.hold(k, costs)
    return values


def _estimates(
    network: Network, now: Choice, then: Choice, profile: Profile, book: ClaimBook
) -> tuple[Estimate, Estimate] | None:
    """Tell what two choices take where they differ; ``None`` where the model is sure."""
    calls = [call for call, _, _ in network.calls]
    ways = alternatives(calls, now, then, book)
    if ways is None or ways[1].us > FAR * ways[0].us:
        return None
    answer = profile.ask([way.parts for way in ways], book.device)
    if answer is None:
        first, second = (Estimate(way.us, "roofline") for way in ways)
    else:
        source = profile.source(answer)
        first, second = (Estimate(us, "measured", source) for us in answer.us)
    return first, second
