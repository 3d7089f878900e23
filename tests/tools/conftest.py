"""Tools import each other as they do when one of them is run."""

from __future__ import annotations

import sys

from support import REPOSITORY

sys.path.append(str(REPOSITORY / "tools"))
