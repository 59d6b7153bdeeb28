"""``python -m gpualert`` where nothing lies in /var/tmp: the last of the places to look is below HOME here."""

import os
import sys

sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from gpualert import roots  # noqa: E402
from gpualert.__main__ import main  # noqa: E402

roots.LAST_RESORT = os.environ["HOME"] + "/last-resort-{uid}"
sys.exit(main())
