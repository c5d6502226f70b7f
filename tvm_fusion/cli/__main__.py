"""``python -m tvm_fusion.cli``."""

import sys

from . import main

sys.exit(main())
