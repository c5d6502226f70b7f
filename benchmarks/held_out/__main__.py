"""The command line: keep what :mod:`.run` has written, and write the page.

python3 -m benchmarks.held_out.run        where the device is
python -m benchmarks.held_out RESULT.json
"""

from benchmarks.records import take

from .table import keep

if __name__ == "__main__":
    take("held_out", __doc__, keep)
