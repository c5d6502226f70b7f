"""What kernels do beside traffic and arithmetic: how their emitter loads, computes and stores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelWork:
    """Instructions that bytes and operations do not tell of, for the models of cost.

    Attributes
    ----------
    clocks
        Of a multiprocessor, from the launch on, by the template's model of its kernels; 0 where it
        has none.
    element_loads
        Elements that threads load one by one, each as often as it is loaded: where tiles of the
        other axis load them again, for each of these.
    thread_loads
        The same of one thread, of all waves of blocks: what few threads wait for.
    element_stores
        Elements that threads store one by one, or in vectors of less than 16 bytes: stores.
    operand_operations
        Operations on operands on their way to tensor cores, as often as they are repeated.
    reread_bytes
        Bytes that blocks read again from caches: rows that registers do not hold, in every pass.
    """

    clocks: float = 0.0
    element_loads: float = 0.0
    thread_loads: float = 0.0
    element_stores: float = 0.0
    operand_operations: float = 0.0
    reread_bytes: int = 0


NO_WORK = KernelWork()
