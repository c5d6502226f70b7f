"""Every family of GPU kernels once under compute-sanitizer: memory, races, barriers."""
