"""What setup.cfg cannot say: the list of packages, and the README as it is read outside of the repository."""

import re
from pathlib import Path

from setuptools import find_packages, setup


def readme() -> str:
    """The README without its pictures, and with its links to files of the repository as plain words: on a package index
    they lead nowhere."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    text = re.sub(r"<picture>.*?</picture>\n", "", text, flags=re.DOTALL)
    return re.sub(r"\[([^\]]+)\]\((?![a-z]+:|#)([^)]+)\)", lambda link: _in_words(link[1], link[2]), text)


def _in_words(label: str, target: str) -> str:
    place = target.partition("#")[0]
    return f"`{place}`" if label in (target, place) else f"{label} (`{place}`)"


layers = ("actors", "protocol", "providers")
rooms = (f"callboard.{layer}.{room}" for layer in layers for room in find_packages(layer, exclude=["front"]))
setup(
    packages=["callboard", *(f"callboard.{layer}" for layer in layers), *rooms],
    long_description=readme(),
    long_description_content_type="text/markdown",
)
