"""Puts tests/ on the path, so that `support` (what several test folders share) can be imported."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
