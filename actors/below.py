"""Paths by their words alone: absolute and normal ones, of which nothing is looked up."""

from __future__ import annotations

from collections.abc import Iterable


def is_below(place: str, folder: str) -> bool:
    """Is it this folder, or in it?"""
    return place == folder or place.startswith(f"{folder.rstrip('/')}/")


def is_below_any(place: str, folders: Iterable[str]) -> bool:
    """Is it one of these folders, or in one?"""
    return any(is_below(place, folder) for folder in folders)
