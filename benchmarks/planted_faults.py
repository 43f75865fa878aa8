"""Plants each fault, and prints how soon the kit finds it and how short its story is after shrinking.

    python benchmarks/planted_faults.py                    # our own, each by the rule it breaks
    python benchmarks/planted_faults.py --independent      # those of an author who did not know the rules, by any rule
    python benchmarks/planted_faults.py replay             # those whose name has the word, with their stories
    python benchmarks/planted_faults.py --product          # those of planted_faults.toml, in the product's own files
    python benchmarks/planted_faults.py --product ledger   # those in one actor

Exits 1 when fewer than 95 in 100 are found within 60 s in at most 12 steps; of those in the product's files, when fewer
than 90 in 100 are found within 20 s of CPU. These run in a copy of the tree, two at a time (Linux).
"""

from __future__ import annotations

import argparse
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from msgspec import Struct
from mutants import KIT, LIMITS_SECONDS, faults_of_kit, wall_seconds
from mutation.kit import NOT_THE_MUTANT
from mutation.tree import Tree

from callboard.protocol.testing.driver import drive
from callboard.protocol.testing.hunting import find
from callboard.protocol.testing.independent_faults import INDEPENDENT_FAULTS
from callboard.protocol.testing.mutation import Mutation, mutated
from callboard.protocol.testing.planted import FAULTS, Fault
from callboard.protocol.testing.scenario import Scenario
from callboard.protocol.testing.trace import Trace

MAX_STEPS = 12
MAX_SECONDS = 60.0
WANTED = 0.95
WANTED_IN_PRODUCT = 0.9
ROOT: Final = Path(__file__).resolve().parents[1]
AT_ONCE = 2


class ProductFault(Struct, frozen=True):
    """A text of a file of the product, and the wrong one in its place."""

    actor: str
    name: str
    file: str
    before: str
    after: str

    def planted(self, text: str) -> str:
        """The file with it. Raises ValueError where the text is not there just once."""
        if text.count(self.before) != 1:
            raise ValueError(f"{self.name!r}: {self.file} has the text to replace {text.count(self.before)} times")
        return text.replace(self.before, self.after)


def product_faults() -> list[ProductFault]:
    """Those of planted_faults.toml."""
    written = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [ProductFault(**fault) for fault in written["fault"]]


def faults(independent: bool) -> Iterator[Fault]:
    """The faults to hunt; those of the independent author name no rule."""
    if not independent:
        yield from FAULTS
        return
    for mutation in INDEPENDENT_FAULTS:
        yield Fault(mutation.__name__, "", partial(_play, mutation))


def _play(mutation: type[Mutation], scenario: Scenario, seed: int) -> Trace:
    return drive(scenario, seed, mutated(mutation))


def _in_time(began: float) -> bool:
    return time.perf_counter() - began < MAX_SECONDS


def hunt_product(chosen: Sequence[ProductFault]) -> int:
    """Plant each in a copy of the tree, play the kit there, and print what found it."""
    seconds, found, all_of = LIMITS_SECONDS["kit"], Counter[str](), Counter(fault.actor for fault in chosen)
    trees: SimpleQueue[Tree] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(AT_ONCE):
            trees.put(stack.enter_context(closing(Tree(ROOT))))
        tree = trees.get()
        if fault := faults_of_kit(tree, seconds):
            print(f"the kit fails without a fault, so it would find any: {fault}")
            return 2
        trees.put(tree)
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for fault, said in zip(chosen, pool.map(partial(_hunted, trees, seconds), chosen), strict=True):
                found[fault.actor] += said != ""
                print(f"{fault.actor:16} {'found ' if said else 'MISSED'} {fault.name}\n{'':24}{said}", flush=True)
    for actor, count in all_of.items():
        print(f"{actor:16} {found[actor]:3} of {count}")
    print(f"{found.total()} of {len(chosen)} found within {seconds:g} s of CPU")
    return 0 if found.total() >= WANTED_IN_PRODUCT * len(chosen) else 1


def _hunted(trees: SimpleQueue[Tree], seconds: float, fault: ProductFault) -> str:
    """What the kit says of it; "" where it finds nothing."""
    tree = trees.get()
    try:
        text = fault.planted((tree.folder / fault.file).read_text())
        with tree.changed(fault.file, text) as file:
            module = "callboard." + fault.file.removesuffix(".py").replace("/", ".")
            ran = tree.run((KIT, module, str(file), str(seconds)), wall_seconds(seconds), {})
    finally:
        trees.put(tree)
    if ran.status == NOT_THE_MUTANT:
        raise RuntimeError(f"{fault.name}: {ran.output}")
    said = (ran.output.strip().splitlines() or [f"status {ran.status}"])[-1]
    return "" if ran.status == 0 else "it hangs" if ran.status is None else said


def main() -> int:
    """Hunt them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="")
    parser.add_argument("--independent", action="store_true")
    parser.add_argument("--product", action="store_true")
    asked = parser.parse_args()
    if asked.product:
        return hunt_product([fault for fault in product_faults() if asked.word in (fault.actor, "")])
    chosen = [fault for fault in faults(asked.independent) if asked.word.lower() in fault.name.lower()]
    good = 0
    print(f"{'fault':64} {'found by':22} {'seconds':>8} {'runs':>6} {'steps':>6}")
    for fault in chosen:
        began = time.perf_counter()
        found = find(fault.play, invariant=fault.invariant, go_on=partial(_in_time, began))
        seconds = time.perf_counter() - began
        steps = found.trace.steps if found else 0
        kept = found is not None and steps <= MAX_STEPS and seconds <= MAX_SECONDS
        good += kept
        rule = (fault.invariant or found.violations[0].invariant) if found else "-"
        runs = found.runs if found else 0
        print(f"{fault.name:64} {rule:22} {seconds:8.1f} {runs:6} {steps:6}{'' if kept else '   MISSED'}")
        if asked.word and found:
            print(found.trace.story(), *found.violations, found.token.line, sep="\n")
    print(f"{good} of {len(chosen)} found within {MAX_SECONDS:g} s in at most {MAX_STEPS} steps")
    return 0 if good >= WANTED * len(chosen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
