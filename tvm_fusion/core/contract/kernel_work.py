"""What kernels do besides traffic and arithmetic: how their emitter loads, computes and stores."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KernelWork:
    """Instructions that bytes and operations do not tell of, for the models of cost."""

    # Of a multiprocessor, from the launch on, by the template's model of its kernels; 0 where it
    # has none.
    clocks: float = 0.0
    # Elements that threads load one by one, each as often as it is loaded: where tiles of the other
    # axis load them again, for each of these.
    element_loads: float = 0.0
    # The same of one thread, of all waves of blocks: what few threads wait for.
    thread_loads: float = 0.0
    # Elements that threads store one by one, or in vectors of less than 16 bytes: stores.
    element_stores: float = 0.0
    # Operations on operands on their way to tensor cores, as often as they are repeated.
    operand_operations: float = 0.0
    # Bytes that blocks read again from caches: rows that registers do not hold, in every pass.
    reread_bytes: int = 0


NO_WORK = KernelWork()
