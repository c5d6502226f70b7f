"""The template for few long rows: one launch reduces parts of rows, another normalizes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from tvm import relax
from tvm.target import Target

from ....core.contract.forms import Form
from ....core.contract.template import Claim, Config, Emission, Kernel, Refusal, Slot, Template
from ....device import Device, device_of
from ....program.group import Group
from ...index.design_space import member
from ...index.estimate import flops, traffic
from ..channel_groups.space import ChannelGroupsConfig, channel_groups_configs
from .forms import TwoLaunches, choose, weighed, whole_rows
from .space import configs


@dataclass(frozen=True, eq=False)
class SplitRowsDetails:
    """What a claim remembers until its kernels are made."""

    config: TwoLaunches  # by rows, or by pixels


class SplitRows(Template):
    """Norms of few long rows, such as the groups of an image: two launches.

    One block for a row would leave multiprocessors idle; several that reduce all of it read it
    several times. Where elements of a row are a few bytes of every pixel, channels last in memory,
    blocks take pixels with the channels of all groups.
    """

    name = "split_rows"

    def claim(self, group: Group, device: Device) -> Claim | Refusal:
        """Claim sums over few long rows, then maps over the same elements."""
        found = choose(group, device)
        return found if isinstance(found, Refusal) else self._claimed(group, found, device)

    def forms(self, claim: Claim, device: Device) -> tuple[Form, ...]:
        """Tell the forms of a GPU's kernels of rows: see :mod:`.forms`."""
        return weighed(claim.group, device, is_split=True)

    def configs(self, claim: Claim, device: Device) -> Iterator[Config]:
        """Enumerate parts of a row and the threads of both launches."""
        return map(attrgetter("plain"), _space(claim, device))

    def configure(self, claim: Claim, config: Config, device: Device) -> Claim | Refusal:
        """Reconfigure claimed norms."""
        chosen = member(claim, config, _space(claim, device), attrgetter("plain"))
        if isinstance(chosen, Refusal):
            return chosen
        return self._claimed(claim.group, chosen, device)

    def _claimed(self, group: Group, config: TwoLaunches, device: Device) -> Claim:
        program = group.program
        read = traffic(group, program.stages)
        again = sum(v.bytes for v in group.inputs) if read > (device.l2_bytes or 0) else 0
        return Claim(
            self,
            group,
            launches=2,
            bytes=read + again + config.bytes_between,
            flops=flops(program.stages),
            parallelism=config.parallelism,
            details=SplitRowsDetails(config),
        )

    def emit(self, claim: Claim, target: Target) -> Emission:
        """Write both kernels."""
        group, device = claim.group, device_of(target)
        config = claim.details_as(SplitRowsDetails).config
        program, partial = group.program, config.partial
        inputs = tuple(Slot("input", i) for i in range(len(group.inputs)))
        scalars = tuple(Slot("scalar", i) for i in range(len(group.scalars)))
        outputs = tuple(Slot("output", i) for i in range(len(group.outputs)))
        between = tuple(Slot("workspace", i) for i in range(len(partial)))
        reduce_parts, map_elements = config.kernels(program, device)
        return Emission(
            (
                Kernel(reduce_parts, (*inputs, *scalars), between),
                Kernel(map_elements, (*inputs, *between, *scalars), outputs),
            ),
            tuple(relax.TensorType(list(p.shape), str(p.dtype)) for p in partial),
        )


def _space(claim: Claim, device: Device) -> Iterator[TwoLaunches]:
    """Enumerate configurations of the same kernels as the claimed one."""
    whole = whole_rows(claim.group.program)
    if isinstance(claim.details_as(SplitRowsDetails).config, ChannelGroupsConfig):
        return channel_groups_configs(whole, device)
    return configs(whole, device)
