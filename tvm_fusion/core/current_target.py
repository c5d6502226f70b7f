"""The target that passes run under."""

from tvm.target import Target

from ..errors import UserError


def current_target(name: str) -> Target:
    """Return the current target.

    Parameters
    ----------
    name
        The pass that needs it.

    Raises
    ------
    UserError
        If there is none: TVM's own error names no pass.
    """
    target = Target.current(allow_none=True)
    if target is None:
        raise UserError(
            f"{name} depends on what kernels are for, and there is no current target",
            "a target around it",
            'write `with tvm_fusion.device.parse("cpu").tvm_target():` around its call',
        )
    return target
