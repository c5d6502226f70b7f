"""The command line: keep what :mod:`.run` has written, and write the page.

python3 -m benchmarks.cpu_threads.run DIR        on the CPU that is measured
python -m benchmarks.cpu_threads RESULT.json
"""

from benchmarks.records import take

from .table import keep

if __name__ == "__main__":
    take("cpu_threads", __doc__, keep)
