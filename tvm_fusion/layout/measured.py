"""Layouts of convolutions by the profile database: what is measured overturns what is claimed.

  for each convolution, in order:
    the best choice in which its images are as the graph has them, or else all in their layouts
    ask about what differs:  groups as they are chosen, with the layout kernels of their images
                             the same as that choice has them
    the latter takes less:   go on from there

What differs may be more than the convolution: what reads or writes its images goes with it where
that is cheaper than a layout kernel between the two.
"""

from __future__ import annotations

import math

from ..core.decisions import record
from ..fusion.claims import FAR, NOISE, ClaimBook
from ..fusion.cost import Estimate
from ..fusion.profile import Profile
from .alternatives import alternatives
from .calls import is_convolution
from .choice import Choice
from .network import Network, Values
from .record import comparison
from .states import MOST_IMAGES


def measured(network: Network, values: Values, profile: Profile, book: ClaimBook) -> Values:
    """Let a profile database change a choice.

    Parameters
    ----------
    network : Network
        Convolutions whose layouts were changed are held to them behind this.
    values : Values
        The choice by claims.
    profile : Profile
        Asked.
    book : ClaimBook
        Of the claims.
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
