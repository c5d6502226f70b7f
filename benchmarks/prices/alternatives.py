"""The distinct groups of a planned model, and other ways to compute each of them.

    fused             as it was planned: one kernel, or the few of its template
    parts             each operator alone; views need no kernel
    prologue apart    what comes before the heaviest operator in kernels of its own
    epilogue apart    what comes behind it
    both apart        the heaviest operator alone between the two

Alternatives of very many kernels are left out.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import tvm
from tvm import ir, relax
from tvm.target import Target

from tvm_fusion.core.contract.template import TEMPLATE, Claim, Refusal
from tvm_fusion.core.contract.templates import template
from tvm_fusion.device import device_of
from tvm_fusion.ecg.graph import Operator
from tvm_fusion.fusion.claims import ClaimBook, claim_book
from tvm_fusion.fusion.database.key import Key
from tvm_fusion.fusion.features import is_contraction
from tvm_fusion.fusion.profile import ProfiledGroup
from tvm_fusion.fusion.reshapes import is_view
from tvm_fusion.program.group import Group
from tvm_fusion.schedule.stage.emit import group_of
from tvm_fusion.tuning.tasks import alone, calls_of

FUSED, PARTS = "fused", "parts"
_NAMED = slice(14, 24)  # hexadecimal digits of a group's name
MOST_STEPS = 6  # kernels of an alternative


@dataclass(frozen=True, eq=False)
class PlannedGroup:
    """A group that a model's plan has."""

    key: str  # the same for equal groups of all models
    claim: Claim  # what its template promises
    calls: int  # how often the model calls it
    # Its function and the PrimFuncs that this calls; ``main`` calls it with its constants.
    mod: tvm.IRModule

    def alternatives(self, book: ClaimBook) -> dict[str, tuple[Claim | ProfiledGroup, ...]]:
        """List ways to compute it, each as claims and views in the order of running."""
        return alternatives_of(self.claim, book)


def planned_groups(mod: tvm.IRModule, target: Target) -> Iterator[PlannedGroup]:
    """Yield each distinct group of static shapes that a planned module calls."""
    device = device_of(target)
    found: dict[str, PlannedGroup] = {}
    for gvar, call, calls in calls_of(mod):
        group = group_of(mod, mod[gvar])
        if group.scalars or not ProfiledGroup.plain("", group).is_static:
            continue
        name = str(mod[gvar].attrs[TEMPLATE])
        key = _name_of(Key.of(group, name, device))
        if key in found:
            calls += found[key].calls
            found[key] = PlannedGroup(key, found[key].claim, calls, found[key].mod)
            continue
        claim = claimed(group, name, target)
        if claim is not None:
            found[key] = PlannedGroup(key, claim, calls, alone(mod, gvar, call))
    yield from found.values()


def read_back(mod: tvm.IRModule, target: Target) -> Claim | None:
    """Claim the group of a module that has one, as :class:`PlannedGroup` has it."""
    functions = [f for f in mod.functions.values() if f.attrs and TEMPLATE in f.attrs]
    func = functions[0]
    return claimed(group_of(mod, func), str(func.attrs[TEMPLATE]), target)


def bind_constants(claim: Claim, mod: tvm.IRModule) -> None:
    """Let a group's inputs know the constants that ``main`` passes."""
    (call,) = [
        binding.value
        for block in mod["main"].body.blocks
        for binding in block.bindings
        if isinstance(binding.value, relax.Call)
    ]
    for value, arg in zip(claim.group.inputs, call.args, strict=True):
        if isinstance(arg, ir.GenericConst):
            value.constant = arg


def claimed(group: Group, name: str, target: Target) -> Claim | None:
    """Ask a template, by its name, for its claim on a group."""
    with target:
        answer = template(name, target).claim(group, device_of(target))
    return None if isinstance(answer, Refusal) else answer


def alternatives_of(
    claim: Claim, book: ClaimBook | None = None, target: Target | None = None
) -> dict[str, tuple[Claim | ProfiledGroup, ...]]:
    """List ways to compute a group: :data:`FUSED` first, equal ones once."""
    if book is None:
        assert target is not None
        book = claim_book(target)
    found: dict[str, tuple[Claim | ProfiledGroup, ...]] = {FUSED: (claim,)}
    members = claim.group.members
    if len(members) == 1:
        return found
    seen = {frozenset([frozenset(members)])}
    for name, pieces in _cuts(members):
        steps = [step for piece in pieces for step in _steps(piece, book)]
        cut = frozenset(frozenset(_group(step).members) for step in steps)
        if cut not in seen and sum(isinstance(step, Claim) for step in steps) <= MOST_STEPS:
            seen.add(cut)
            found[name] = tuple(steps)
    return found


def _group(step: Claim | ProfiledGroup) -> Group:
    return step.group


def _cuts(members: Sequence[Operator]) -> Iterator[tuple[str, list[list[Operator]]]]:
    """Cut a group at its heaviest operator, if that is a contraction, and into its operators."""
    heavy = max(members, key=lambda op: op.flops)
    if is_contraction(heavy):
        before = _reached(heavy, members, backwards=True)
        behind = _reached(heavy, members, backwards=False)
        independent = [op for op in members if op not in {*before, *behind, heavy}]
        kept = [*independent, heavy]
        if before:
            yield "prologue apart", [before, [*kept, *behind]]
        if behind:
            yield "epilogue apart", [[*before, *kept], behind]
        if before and behind:
            yield "both apart", [before, kept, behind]
    yield PARTS, [[op] for op in members]


def _reached(start: Operator, members: Sequence[Operator], *, backwards: bool) -> list[Operator]:
    inside, found, frontier = set(members), set[Operator](), [start]
    while frontier:
        op = frontier.pop()
        near = (
            [v.producer for v in op.tensors]
            if backwards
            else [c for v in op.results for c in v.consumers]
        )
        for other in near:
            if other is not None and other in inside and other not in found:
                found.add(other)
                frontier.append(other)
    return [op for op in members if op in found]


def _steps(piece: Sequence[Operator], book: ClaimBook) -> list[Claim | ProfiledGroup]:
    """Claim the connected components of a piece, or their operators one by one."""
    steps: list[Claim | ProfiledGroup] = []
    for component in _components(piece):
        if all(map(is_view, component)):
            steps += [ProfiledGroup.plain("", Group([op])) for op in component]
            continue
        answer = book.claim(Group(component))
        if isinstance(answer, Claim):
            steps.append(answer)
            continue
        for op in component:
            if is_view(op):
                steps.append(ProfiledGroup.plain("", Group([op])))
            else:
                single = book.claim(Group([op]))
                if not isinstance(single, Claim):
                    raise ValueError(f"{op.title} alone is refused")
                steps.append(single)
    return steps


def _components(piece: Sequence[Operator]) -> list[list[Operator]]:
    left, found = list(piece), []
    while left:
        whole, frontier = {left[0]}, [left[0]]
        while frontier:
            op = frontier.pop()
            near = {v.producer for v in op.tensors} | {c for v in op.results for c in v.consumers}
            for other in near & set(left) - whole:
                whole.add(other)
                frontier.append(other)
        found.append([op for op in piece if op in whole])
        left = [op for op in left if op not in whole]
    return found


def parts_of(steps: Sequence[Claim | ProfiledGroup]) -> list[ProfiledGroup]:
    """Give the steps of an alternative as the profile database has them."""
    return [
        step
        if isinstance(step, ProfiledGroup)
        else ProfiledGroup.plain(step.template.name, step.group)
        for step in steps
    ]


def _name_of(key: Key) -> str:
    text = "\n".join([key.structure, key.dtypes, key.shapes, key.versions])
    return hashlib.sha256(text.encode()).hexdigest()[_NAMED]
