"""Count what the plan of a model makes use of."""

from collections import Counter
from typing import Any

import tvm
from tvm.ir.instrument import pass_instrument
from tvm.ir.transform import PassContext

from tvm_fusion import FusionConfig
from tvm_fusion.core.contract.template import Claim
from tvm_fusion.device import parse
from tvm_fusion.report.planned import PlannedModel, plan_model
from tvm_fusion.rewrite.egraph.changes import noting
from tvm_fusion.rewrite.egraph.law import FLAGS
from tvm_fusion.rewrite.egraph.regions import regions
from tvm_fusion.rewrite.egraph.saturate import Limits
from tvm_fusion.rewrite.laws import LAWS, allowed
from tvm_fusion.rewrite.recompose.patterns import PATTERNS
from tvm_fusion.rewrite.search.search import Searcher

from .cases import cases

SUITE_TARGET = "cpu:x86-64-v3"

# Other templates with forms are of products.
_OF_FORMS = {"attention": "attention", "rows": "rows", "split_rows": "rows"}


@pass_instrument
class ChangingPasses:
    """Counts the passes that change functions.

    Attributes
    ----------
    changed : Counter
        Runs by the pass's name.
    """

    def __init__(self) -> None:
        self.changed: Counter[str] = Counter()
        self._before: list[dict[str, Any]] = []

    def run_before_pass(self, mod: tvm.IRModule, _info: Any) -> None:
        """Keep the functions as they are."""
        self._before.append(_functions(mod))

    def run_after_pass(self, mod: tvm.IRModule, info: Any) -> None:
        """Count the pass if one of them is another one now."""
        before, after = self._before.pop(), _functions(mod)
        is_same = before.keys() == after.keys() and all(
            func.same_as(before[name]) for name, func in after.items()
        )
        if not is_same:
            self.changed[str(info.name)] += 1


def _functions(mod: tvm.IRModule) -> dict[str, Any]:
    return {gvar.name_hint: func for gvar, func in mod.functions.items()}


def counted(model: Any, target: str, precision: Any = "fp32") -> dict[str, dict[str, int]]:
    """Plan a model and count, by kind and name, what it makes use of.

    Returns
    -------
    dict
        ``templates``: launches of their claims. ``forms``: groups of which it is the chosen one.
        ``laws``, ``patterns``: changes of the graph that they made. ``applied``: laws that equal
        forms were written by, whether or not one of these was the cheapest. ``passes``: runs that
        changed a function.
    """
    instrument = ChangingPasses()
    config = FusionConfig(precision=precision)
    with PassContext(instruments=[instrument]), noting() as rewrites:
        planned = plan_model(model, target, config)
    chosen = {name: use.chosen for name, use in rewrites.uses.items() if use.chosen}
    laws, patterns = ({rule.name for rule in rules} for rules in (LAWS, PATTERNS))
    passes = cases()["passes"]
    return {
        "templates": _templates(planned),
        "forms": _forms(planned),
        "laws": {name: count for name, count in chosen.items() if name in laws},
        "patterns": {name: count for name, count in chosen.items() if name in patterns},
        "passes": {name: n for name, n in instrument.changed.items() if name in passes},
        "applied": {
            name: use.fired for name, use in rewrites.uses.items() if use.fired and name in laws
        },
    }


def counted_suite() -> dict[str, dict[str, int]]:
    """Count the laws that wrote the cheapest forms of the expressions with a known optimum.

    All laws take part, those that need a flag, too.
    """
    from tests.rewrite.suite import EXPRESSIONS

    laws = allowed(tuple(FLAGS))
    searcher = Searcher(laws, parse(SUITE_TARGET).tvm_target(), Limits(seconds=600))
    found: Counter[str] = Counter()
    for expression in EXPRESSIONS.values():
        for block in expression.before["main"].body.blocks:
            for region in regions(block):
                found.update(searcher.search(region).laws)
    applied = {name: use.fired for name, use in searcher.uses.items() if use.fired}
    return {"laws": dict(found), "applied": applied}


def _claims(planned: PlannedModel) -> list[Claim]:
    """List the claims of a plan, those of images in the layouts that are chosen later."""
    claims = (claim for plan in planned.plans.values() for claim in plan.claims)
    return [claim.laid_out or claim for claim in claims]


def _templates(planned: PlannedModel) -> dict[str, int]:
    kind = "GPU" if "gpu" in planned.spec.tvm_target().keys else "CPU"
    found: Counter[str] = Counter()
    for claim in _claims(planned):
        found[f"{kind}: {claim.template.name}"] += claim.launches
    return dict(found)


def _forms(planned: PlannedModel) -> dict[str, int]:
    known: dict[Any, str | None] = {}
    found: Counter[str] = Counter()
    for claim in _claims(planned):
        name = claim.template.name
        key = name, claim.group.key
        if key not in known:
            forms = claim.template.forms(claim, planned.spec.device)
            known[key] = next((form.name for form in forms if form.is_chosen), None)
        if known[key] is not None:
            found[f"{_OF_FORMS.get(name, 'product')}: {known[key]}"] += 1
    return dict(found)
