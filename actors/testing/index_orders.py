"""In which order the index gives places that hold the same words: small scenes, each with what is to come first."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from callboard.actors.index.assembly import assemble
from callboard.actors.index.code_index import CodeIndex


class Scene(Struct, frozen=True):
    """`{w}` and `{v}` are words of the scene alone; so are `{a}`, `{b}` and `{c}`, which are names."""

    files: dict[str, str]
    asked: str
    order: tuple[str, ...]
    """Parts of paths, the best first; "" is in any."""


_BODY: Final = "".join(f"    value = value + {number}\n" for number in range(6)) + "    return value\n"
_SCRIPT: Final = "export function {a}(value) {{\n  // {w} {v}\n  const more = value + 1;\n  return more * value;\n}}\n"
_KINDS: Final = {
    "z/code.py": f"def {{a}}(value):\n    # {{w}} {{v}}\n{_BODY}",
    "a/tests/test_x.py": f"def {{b}}(value):\n    # {{w}} {{v}}\n{_BODY}",
    "a/guide.md": "# About\n\n" + "The {w} {v} is told here, at some length, for a reader: call {a}(value). " * 3,
}
SCENES: Final = (
    Scene(_KINDS, "{w} {v}", ("z/code.py",)),
    Scene(_KINDS, "{w} {v} tests", ("a/tests/",)),
    Scene(_KINDS, "how do I {w} {v}", ("a/guide.md",)),
    Scene(_KINDS, "the {w}. What must I do to {v}?", ("a/guide.md",)),
    # The same compiled from the same says nothing more.
    Scene(
        {"a/x.js": _SCRIPT, "a/x.ts": _SCRIPT, "b/y.js": _SCRIPT.replace("{a}", "{b}")},
        "{w} {v}",
        ("", "", "a/x.ts"),
    ),
    # What a good place calls is likelier itself.
    Scene(
        {
            "a/one.py": f"def {{a}}(value):\n    # {{w}}\n{_BODY}",
            "b/two.py": f"def {{b}}(value):\n    # {{w}}\n{_BODY}",
            "c/three.py": f"def {{c}}(value):\n    # {{w}} {{w}} {{w}}\n    value = {{b}}(value)\n{_BODY}",
        },
        "{w}",
        ("c/three.py", "b/two.py", "a/one.py"),
    ),
    # What is vendored, generated, an example or a declaration stands behind what is written here.
    *(
        Scene({place: text, "z/own.py": text.replace("{a}", "{b}")}, "{w} {v}", ("z/own.py", place))
        for place in ("a/vendor/x.py", "a/x_pb2.py", "a/examples/x.py", "a/x.pyi")
        for text in (f"def {{a}}(value):\n    # {{w}} {{v}}\n{_BODY}",)
    ),
    # What is called so comes before what speaks of it; a name of several words is found by them.
    Scene(
        {"a/one.py": f"def {{a}}(value):\n    # {{w}} {{v}}\n{_BODY}", "b/two.py": f"def {{w}}_{{v}}(value):\n{_BODY}"},
        "{w} {v}",
        ("b/two.py", "a/one.py"),
    ),
    # What holds more of the words comes first.
    Scene(
        {
            "a/one.py": f"def {{a}}(value):\n    # {{w}}\n{_BODY}",
            "b/two.py": f"def {{b}}(value):\n    # {{w}} {{v}}\n{_BODY}",
        },
        "{w} {v}",
        ("b/two.py", "a/one.py"),
    ),
    # What does the work comes before what passes it on.
    Scene(
        {"a/one.py": "def {a}(value): return {w}(value)\n", "b/two.py": f"def {{b}}(value):\n    # {{w}}\n{_BODY}"},
        "{w}",
        ("b/two.py", "a/one.py"),
    ),
)  # fmt: skip


def compare(rng: random.Random, word: Callable[[], str], root: Path, index: CodeIndex) -> list[str]:
    """What is not in its order, of some scenes, and what a guide names that is not shown with it."""
    problems: list[str] = []
    for scene in rng.sample(SCENES, 4):
        named = {name: word() for name in "wvabc"}
        for name, text in scene.files.items():
            place = root / named["w"] / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text.format(**named))
        index.refresh()
        asked = scene.asked.format(**named)
        found = [hit.path.removeprefix(f"{root}/{named['w']}/") for hit in index.search(asked, 3)]
        if not all(due in path for path, due in zip(found, scene.order, strict=False)) or len(found) < len(scene.order):
            problems.append(f"{asked!r} is answered with {found}, and {scene.order} is due, of {sorted(scene.files)}")
        if scene.order == ("a/guide.md",) and f"def {named['a']}" not in str(assemble(index, asked, 4_000).context):
            problems.append(f"a guide that answers {asked!r} names code that is not shown with it")
    return problems
