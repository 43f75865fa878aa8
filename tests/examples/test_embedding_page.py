"""docs/embedding.md shows what the examples hold, word for word."""

from __future__ import annotations

import json
import re

import pytest
from support.host_programs import EXAMPLES

PAGE = (EXAMPLES.parents[1] / "docs" / "embedding.md").read_text()
SHOWN = re.findall(r"<!-- not run: from examples/embedding/(\S+); [^\n]*-->\n```python\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.mark.parametrize(("name", "code"), SHOWN, ids=[f"{number} {name}" for number, (name, _) in enumerate(SHOWN)])
def test_code_is_from_the_example(name: str, code: str) -> None:
    text = (EXAMPLES / name).read_text()
    if name.endswith(".ipynb"):
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"]) + "\n"
    assert code in text


def test_all_code_is_from_the_examples_and_all_examples_are_shown() -> None:
    run_as_they_are = PAGE.count("<!-- model:")  # by tests/test_docs.py
    assert PAGE.count("```python") - run_as_they_are == len(SHOWN)
    files = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb")}
    assert files == {name for name, _ in SHOWN}
