"""Measures compiled models against peers: a process each, interleaved, checked before timed.

``python -m benchmarks.harness --models resnet50 --json benchmarks/cpu/results/resnet50.json``
measures; ``python -m benchmarks.harness.table`` regenerates the tables from the JSON files alone.
"""
