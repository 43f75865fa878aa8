"""docs/embedding.md shows what the examples hold, word for word."""

from __future__ import annotations

import json
import re

from support.host_programs import EXAMPLES
from support.offenders import no_offenders

PAGE = (EXAMPLES.parents[1] / "docs" / "embedding.md").read_text()
SHOWN = re.findall(r"<!-- not run: from examples/embedding/(\S+); [^\n]*-->\n```python\n(.*?)^```$", PAGE, re.M | re.S)


def test_code_is_from_the_example() -> None:
    no_offenders(f"not in {name}:\n{code}" for name, code in SHOWN if code not in code_of(name))


def code_of(example: str) -> str:
    text = (EXAMPLES / example).read_text()
    if example.endswith(".ipynb"):
        return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"]) + "\n"
    return text


def test_all_code_is_from_the_examples_and_all_examples_are_shown() -> None:
    run_as_they_are = PAGE.count("<!-- model:")  # by tests/test_docs.py
    assert PAGE.count("```python") - run_as_they_are == len(SHOWN)
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files == {name for name, _ in SHOWN}
