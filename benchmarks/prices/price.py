"""What the models of cost say of a group, as plain data."""

from collections.abc import Sequence
from typing import Any

from tvm_fusion.core.contract.template import Claim
from tvm_fusion.device import Device
from tvm_fusion.fusion.cost import CostModel
from tvm_fusion.fusion.features import NAMES, features_of
from tvm_fusion.fusion.profile import ProfiledGroup


def about(claim: Claim, device: Device) -> dict[str, Any]:
    """Describe a group for a reader: its operators, template, form and shapes."""
    chosen = [form for form in claim.template.forms(claim, device) if form.is_chosen]
    group = claim.group
    return {
        "title": group.title,
        "template": claim.template.name,
        "form": chosen[0].name if chosen else "",
        "kernel": chosen[0].kernel if chosen else "",
        "shapes": [
            f"{v.dtype} {'x'.join(str(int(d)) for d in v.shape)}"
            for v in (*group.inputs, *group.outputs)
        ],
    }


def priced(steps: Sequence[Claim | ProfiledGroup], device: Device) -> dict[str, Any]:
    """Price an alternative: microseconds by the planner's model and by the roofline, and why.

    Views cost nothing.
    """
    cost = CostModel(device)
    claims = [step for step in steps if isinstance(step, Claim)]
    estimates = [cost.cost(claim) for claim in claims]
    return {
        "us": round(sum(one.us for one in estimates), 3),
        "roofline_us": round(cost.roofline(claims), 3),
        "source": " and ".join(sorted({one.source for one in estimates})),
        "claims": [_claim(cost.chosen(claim), cost, device.kind == "llvm") for claim in claims],
    }


def _claim(claim: Claim, cost: CostModel, is_shared: bool) -> dict[str, Any]:
    """Tell a claim's template and features, as coefficients are fitted to them; without zeros."""
    row = features_of(claim, cost.cache_bytes, cost.units, is_shared=is_shared).row
    found = {name: float(f"{x:.5g}") for name, x in zip(NAMES, row, strict=True) if x}
    return {"template": claim.template.name, **found}
