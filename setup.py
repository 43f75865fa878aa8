"""Everything is in setup.cfg but the list of packages: all folders of the three layers, under their installed names."""

from setuptools import find_packages, setup

layers = ("actors", "protocol", "providers")
rooms = (f"callboard.{layer}.{room}" for layer in layers for room in find_packages(layer, exclude=["front"]))
setup(packages=["callboard", *(f"callboard.{layer}" for layer in layers), *rooms])
