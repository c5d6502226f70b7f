"""The command line: keep what :mod:`.run` has written, and write the page.

python3 -m benchmarks.cpu_half.run DIR        on the CPU that is measured
python -m benchmarks.cpu_half RESULT.json
"""

from benchmarks.records import take

from .table import keep

if __name__ == "__main__":
    take("cpu_half", __doc__, keep)
