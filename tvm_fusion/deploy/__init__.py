"""Lowering to TVM's virtual machine, building, the artifact on disk, and loading it."""
