"""The documentation as a site. One command builds it, into build/site; a warning is an error:

    sphinx-build --fail-on-warning --keep-going docs build/site

The pages are Markdown that reads on its own. `index.md` is the only place where the navigation is written: each of its
headings with a list of links becomes a part of it.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

ROOT: Final = Path(__file__).resolve().parents[1]
if (ROOT / ".dev").is_dir():  # this tree, not an installed copy
    sys.path.insert(0, str(ROOT / ".dev"))

import callboard  # noqa: E402 - found by the path above
from callboard.actors.cli.arguments import parser, with_all_below  # noqa: E402
from callboard.actors.environment import VARIABLES  # noqa: E402
from callboard.protocol.testing.diagrams import BLOCKS  # noqa: E402

project = "callboard"
author = "the callboard authors"
version = release = callboard.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinxcontrib.mermaid"]
exclude_patterns = ["_build"]
nitpicky = True
# Names of the standard library and of other packages: their own documentation would have to be fetched to link to it.
nitpick_ignore_regex = [(r"py:.*", r"(?!callboard\b).*")]

myst_heading_anchors = 4  # as on GitHub, down to this level
myst_fence_as_directive = ["mermaid"]
mermaid_version = "11.4.1"

autodoc_default_options = {"undoc-members": True}  # a field whose name says all has no docstring
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {  # unions that have a name
    "Answer": "callboard.actors.testing.wire_double.Answer",
    "Prompt": "callboard.actors.requests.asking.Prompt",
}
autodoc_preserve_defaults = True
default_role = "code"
smartquotes = False
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "callboard"
html_theme_options = {"show_prev_next": True, "show_toc_level": 2, "navigation_with_keys": False}
html_copy_source = False
html_show_sourcelink = False

_ALONE: Final = re.compile(r"^\.\. auto\w+:: (\w+)(?:\(.*\))?$", re.MULTILINE)
#: What pages of the reference show as a name of the front door.
SHOWN: Final = [
    getattr(callboard, name)
    for page in sorted(Path(__file__).with_name("reference").glob("*.rst"))
    for name in _ALONE.findall(page.read_text(encoding="utf-8"))
    if name in callboard.__all__
]
_SECTION: Final = re.compile(r"^## (?P<title>.+)\n(?P<text>(?:(?!## ).*\n?)*)", re.MULTILINE)
_PAGE: Final = re.compile(r"^- \[(?P<title>[^\]]+)\]\((?P<page>[^)#:]+)\.(?:md|rst)\)", re.MULTILINE)


def navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Add to the first page what Sphinx makes the navigation of: a hidden toctree for each list of links to pages."""
    if name != app.config.root_doc:
        return
    for section in _SECTION.finditer(source[0]):
        pages = [f"{link['title']} <{link['page']}>" for link in _PAGE.finditer(section["text"])]
        if pages:
            options = f":hidden:\n:caption: {section['title']}\n"
            source[0] += "\n```{toctree}\n" + options + "\n" + "\n".join(pages) + "\n```\n"


def is_shown_already(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool | None:
    """What a page shows as a name of the front door is not shown once more in its module."""
    return True if what == "module" and any(obj is each for each in SHOWN) else None


def as_sphinx_reads_it(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Our docstrings are plain text with `names` and indented code, as in Markdown; Sphinx reads reStructuredText."""
    found: list[str] = []
    is_code = False
    for before, line in zip(["", *lines], lines, strict=False):
        is_indented = line.startswith("    ")
        if is_indented and not is_code and not before.strip() and any(each.strip() for each in found):
            found += ["::", ""]
            is_code = True
        elif line.strip() and not is_indented:
            is_code = False
        found.append(line if is_code else escaped(line))
    lines[:] = found


def escaped(line: str) -> str:
    """A line in which only what is between backticks has a meaning: names of the front door become links."""
    shown = []
    for number, piece in enumerate(line.split("`")):
        if number % 2 == 0:
            shown.append(re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", piece))
        else:
            shown.append(f":py:obj:`~callboard.{piece}`" if piece in callboard.__all__ else f"`{piece}`")
    return "".join(shown)


def exists(app: Sphinx, env: object, node: pending_xref, shown: nodes.Element) -> nodes.Element | None:
    """What signatures name and the reference does not show stays text. A name that does not exist is a fault."""
    module, _, name = str(node.get("reftarget", "")).rpartition(".")
    if not module.startswith("callboard"):
        return None
    try:
        return shown if hasattr(import_module(module), name) else None
    except ImportError:
        return None


class SettingsTable(SphinxDirective):
    """All fields of Settings: type, default, variable and meaning, from the class itself."""

    def run(self) -> list[nodes.Node]:
        rows = [".. list-table::", "   :header-rows: 1", "   :widths: 30 70", "", "   * - field", "     - meaning"]
        return self.parse_text_to_nodes("\n".join([*rows, *_settings_rows()]))


def _settings_rows() -> Iterator[str]:
    fields, annotations = callboard.Settings.model_fields, callboard.Settings.__annotations__
    written = ModuleAnalyzer.for_module(callboard.Settings.__module__).find_attr_docs()
    for name, field in fields.items():
        kind = re.sub(r"^Annotated\[(.*), SkipValidation\(\)\]$", r"\1", annotations[name])
        default = "" if field.default_factory else f" = ``{field.default!r}``"
        yield f"   * - ``{name}``"
        yield ""
        yield f"       ``{kind}``{default}"
        meaning = escaped(" ".join(written.get(("Settings", name), ())).strip())
        variable = f" Variable: ``{VARIABLES[name]}``." if name in VARIABLES else ""
        yield f"     - {meaning}{variable}"


class CommandHelp(SphinxDirective):
    """What `callboard --help` and the help of each command print."""

    def run(self) -> list[nodes.Node]:
        return [node for command in with_all_below(parser()) for node in self._section(command)]

    def _section(self, command: argparse.ArgumentParser) -> list[nodes.Node]:
        title = nodes.rubric(text=command.prog)
        return [title, nodes.literal_block(text=command.format_help(), language="text")]


class CodeTable(SphinxDirective):
    """A Markdown table that `callboard.protocol.testing.diagrams` makes of the code, by its name there."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        head, _, *rows = BLOCKS[self.arguments[0]]().strip().splitlines()
        lines = [".. list-table::", "   :header-rows: 1", ""]
        for row in (head, *rows):
            first, *others = (cell.strip() for cell in row.split("|")[1:-1])
            lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
        return self.parse_text_to_nodes("\n".join(lines))


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", navigation)
    app.connect("autodoc-process-docstring", as_sphinx_reads_it)
    app.connect("missing-reference", exists)
    app.connect("autodoc-skip-member", is_shown_already)
    app.add_directive("callboard-settings", SettingsTable)
    app.add_directive("callboard-help", CommandHelp)
    app.add_directive("callboard-table", CodeTable)
