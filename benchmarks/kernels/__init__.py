"""Single kernels on a CPU against what the machine can do: multiply, and move bytes."""
