"""The template of two GEMMs back to back on Hopper, whose hidden rows reach no memory.

It takes many rows of few columns, whose two weights fit into shared memory together, where the
models of one kernel and of two say that it pays.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tvm.target import Target

from ....core.contract.template import Claim, Config, Emission, Refusal, Template
from ....core.once import once
from ....device import Device
from ....ecg.graph import Graph, Operator
from ....program.group import Group
from ....program.stage import Unstructured
from ...index.design_space import Kernels, member
from ...index.estimate import too_many_parameters, traffic
from ...index.inline import inlined, inlined_size
from ..wgmma.dual_gemm import has_two_products
from ..wgmma.space import has_wgmma
from .config import BackToBackConfig
from .problem import BackToBack, back_to_back, back_to_back_proposals
from .roles import back_to_back_gpu
from .space import back_to_back_clocks, back_to_back_configs, two_kernels_clocks

# What one kernel may take of the clocks of two, as far as their models are off: 3136 rows of
# 96-384-96 are estimated to take 0.92 of two and took 1.04, all others of 14 pairs 0.43 to 0.71 and
# 0.40 to 0.70.
MOST_OF_TWO = 0.85
KERNELS = Kernels({BackToBackConfig: ("back to back", ("consumers", "chunk", "stages"))})


@dataclass(frozen=True, eq=False)
class BackToBackDetails:
    """What a claim remembers until its kernel is made."""

    config: BackToBackConfig  # consumers, chunks and stages
    pair: BackToBack  # both products


class BackToBackGemm(Template):
    """``epilogue(epilogue(x @ w1) @ w2)`` in one kernel, both weights resident."""

    name = "back_to_back"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim two products of which the second reads what the first one's epilogue computes."""
        if len(group) < 2 or not has_wgmma(device):
            return Refusal("not_mine", "Two GEMMs back to back need two operators and wgmma.")
        try:
            program = group.program
        except Unstructured as reason:
            return Refusal("unstructured", str(reason))
        if not has_two_products(program):
            return Refusal("not_mine", "It does not have exactly two products.")
        refusal = too_many_parameters(program) or inlined_size(program)
        pair = refusal or back_to_back(program, inlined(program))
        if isinstance(pair, Refusal):
            return pair
        found = back_to_back_configs(pair, device)
        if isinstance(found, Refusal):
            return found
        config = next(found)
        return _slower(pair, config, device) or self._claimed(group, pair, config)

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Make the kernel of the claimed configuration."""
        func = back_to_back_gpu(claim.group.program, claim.details_as(BackToBackDetails).config)
        return Emission.one(func, claim.group)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate consumers and chunks."""
        return map(KERNELS.plain, self._designs(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure a claimed pair of GEMMs."""
        chosen = member(claim, config, self._designs(claim, device), KERNELS.plain)
        if isinstance(chosen, Refusal):
            return chosen
        return self._claimed(claim.group, claim.details_as(BackToBackDetails).pair, chosen)

    def propose(self, graph: Graph, device: Device) -> Iterable[tuple[Operator, ...]]:
        """Name two products with what lies between them.

        Of a chain of layers, every second pair: where the pair in the middle saved the most, those
        around it would be left over.
        """
        taken: set[Operator] = set()
        for first, second, operators in back_to_back_proposals(graph, device):
            if first in taken:
                continue
            group = Group(operators)
            # Most hidden rows are read elsewhere, too, and refused, which the graph tells already.
            if len(group.outputs) == 1 and self._claims(group, device):
                taken.add(second)
            yield operators

    def _claims(self, group: Group, device: Device) -> bool:
        key = self.name, "claims", group.key
        return once(key, lambda: isinstance(self.claim(group, device), Claim))

    def _designs(self, claim: Claim, device: Device) -> Iterator[BackToBackConfig]:
        found = back_to_back_configs(claim.details_as(BackToBackDetails).pair, device)
        return iter(()) if isinstance(found, Refusal) else found

    def _claimed(self, group: Group, pair: BackToBack, config: BackToBackConfig) -> Claim:
        stages = inlined(group.program)
        return Claim(
            self,
            group,
            launches=1,
            bytes=traffic(group, stages),
            flops=sum(op.flops for op in group.members),
            parallelism=config.blocks,
            shared_bytes=config.shared_bytes,
            registers=config.registers,
            details=BackToBackDetails(config, pair),
        )


def _slower(pair: BackToBack, config: BackToBackConfig, device: Device) -> Refusal | None:
    """Refuse what two kernels are estimated to compute faster."""
    one, two = back_to_back_clocks(config, device), two_kernels_clocks(pair, device)
    if two is None or one < MOST_OF_TWO * two:
        return None
    names = pair.first.stage.title, pair.second.stage.title
    return Refusal(
        "two_kernels_are_faster",
        f"One kernel of {names[0]} and {names[1]} is estimated to take {one / two:.0%} of the time "
        f"of two, and the limit is {MOST_OF_TWO:.0%}: it has {config.tiles} tiles of 64 rows, and "
        f"{config.weight_bytes} bytes of weights in each multiprocessor.",
    )
