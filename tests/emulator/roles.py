"""Roles of warp-specialized kernels: branches that wait for one another, run in turns."""

import threading

import numpy as np

from .memory import EmulationError


class _Cancelled(BaseException):
    """Another role has failed."""


class _Role:
    """Some threads at their own pace: a Python thread, which runs only when it is resumed."""

    def __init__(self, machine, body):
        self.machine, self.body = machine, body
        self.mask, self.slots = machine.mask, list(machine.slots)
        self.waits_for = self.error = None
        self.is_done = self.is_cancelled = False
        self.turn, self.back = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, daemon=True)

    def resume(self):
        """Run until the role waits or ends."""
        machine = self.machine
        before = machine.mask, machine.slots, machine.role
        machine.mask, machine.slots, machine.role = self.mask, self.slots, self
        if self.thread.ident is None:
            machine.progress += 1
            self.thread.start()
        else:
            self.turn.release()
        self.back.acquire()
        machine.mask, machine.slots, machine.role = before
        if self.error is not None:
            raise self.error

    def give_way(self, what):
        """Let others run; the role's own thread calls it."""
        machine = self.machine
        self.mask, self.slots, self.waits_for = machine.mask, machine.slots, what
        self.back.release()
        self.turn.acquire()
        if self.is_cancelled:
            raise _Cancelled

    def cancel(self):
        if self.thread.is_alive():
            self.is_cancelled = True
            self.turn.release()
            self.thread.join()

    def _run(self):
        try:
            with np.errstate(all="ignore"):
                self.body(self.machine)
        except _Cancelled:
            pass
        except BaseException as error:  # guard: raised by whoever resumed the role
            self.error = error
        self.is_done = True
        self.back.release()


def run_roles(machine, bodies):
    """Run functions of a machine in turns, each until it waits for what another has to do.

    Parameters
    ----------
    machine : Machine
        Whose mask and variables each of the functions has as they are now.
    bodies : sequence of callable
        What the roles do.
    """
    roles = [_Role(machine, body) for body in bodies]
    going, outer = roles, machine.role
    try:
        while going:
            before = machine.progress
            for role in going:
                role.resume()
            still = [role for role in going if not role.is_done]
            if len(still) == len(going) and machine.progress == before:
                waits = "; ".join(dict.fromkeys(role.waits_for for role in still))
                if outer is None:
                    raise EmulationError(f"deadlock: all roles wait: {waits}")
                outer.give_way(waits)
            going = still
    finally:
        for role in roles:
            role.cancel()
