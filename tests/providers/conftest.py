"""Puts tests/ on the path, so that `support` (what several test folders share) can be imported."""

from __future__ import annotations
