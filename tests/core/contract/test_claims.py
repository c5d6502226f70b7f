"""What a claim remembers is for the template that made it."""

import pytest
from group_kernels import CPU, group, tensor
from tvm import relax

from tvm_fusion.schedule.elementwise.template import Elementwise, ElementwiseDetails
from tvm_fusion.schedule.rows.template import RowsDetails


def test_details_are_of_the_template_that_made_the_claim():
    members = group([tensor("x", 3, 5)], lambda emit, x: relax.op.exp(x))
    claim = Elementwise(False).claim(members, CPU.device)
    assert claim.details_as(ElementwiseDetails) is claim.details
    with pytest.raises(TypeError, match=r"elementwise has ElementwiseDetails .*, not RowsDetails"):
        claim.details_as(RowsDetails)
