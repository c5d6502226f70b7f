"""The command line: keep what :mod:`.run` has written, and write the page.

python -m benchmarks.qdq.run DIR        on the CPU that is measured
python -m benchmarks.qdq RESULT.json
"""

from benchmarks.records import take

from .table import keep

if __name__ == "__main__":
    take("qdq", __doc__, keep)
