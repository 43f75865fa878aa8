"""Which language a file is in, and how its symbols are named: a table."""

from __future__ import annotations

from pathlib import PurePosixPath

from msgspec import Struct


class Language(Struct, frozen=True):
    """One language, or kind of text."""

    name: str
    """Also of its grammar (grammars.py)."""
    query: str = ""
    """A file of data/symbols; empty for text without a grammar."""
    extensions: str = ""
    separator: str = "."
    """Between the names of a canonical path."""
    prose: bool = False
    """Documentation or data: found, but behind code."""

    @property
    def is_code(self) -> bool:
        """Whether its symbols are definitions."""
        return bool(self.query) and not self.prose


TEXT = Language("text", prose=True)


def _code(name: str, extensions: str, separator: str = ".", query: str = "") -> Language:
    """A language with a grammar; `query` where another language's serves it."""
    return Language(name, f"{query or name}.scm", extensions, separator)


LANGUAGES = (
    _code("python", ".py .pyi .pyw"),
    _code("rust", ".rs", "::"),
    _code("javascript", ".js .jsx .mjs .cjs"),
    _code("typescript", ".ts .mts .cts"),
    _code("tsx", ".tsx", query="typescript"),
    _code("go", ".go"),
    _code("java", ".java"),
    _code("c", ".c .h"),
    _code("cpp", ".cc .cpp .cxx .hh .hpp .hxx .ipp .cu .cuh", "::"),
    _code("csharp", ".cs"),
    _code("ruby", ".rb .rake .gemspec", "::"),
    _code("php", ".php", "::"),
    _code("kotlin", ".kt .kts"),
    _code("swift", ".swift"),
    _code("scala", ".scala .sc"),
    _code("bash", ".sh .bash .zsh"),
    _code("lua", ".lua"),
    _code("elixir", ".ex .exs"),
    _code("dart", ".dart"),
    _code("zig", ".zig"),
    _code("haskell", ".hs"),
    _code("julia", ".jl"),
    _code("ocaml", ".ml"),
    _code("perl", ".pl .pm", "::"),
    _code("solidity", ".sol"),
    _code("sql", ".sql"),
    _code("hcl", ".tf .hcl"),
    _code("proto", ".proto"),
    Language("markdown", "markdown.scm", ".md .mdx .markdown .qmd", " > ", prose=True),
    Language("rst", "rst.scm", ".rst", " > ", prose=True),
    Language("asciidoc", "asciidoc.scm", ".adoc .asciidoc", " > ", prose=True),
    Language("html", "html.scm", ".html .htm", " > ", prose=True),
    Language("notebook", extensions=".ipynb", separator=" > ", prose=True),
    Language("template", extensions=".vue .svelte .astro .jinja .j2 .erb .hbs .css .scss .less .cmake .mk"),
    Language(
        "script", extensions=".bat .ps1 .fish .awk .vim .el .clj .cljs .lisp .r .m .mm .f90 .pas .nim .erl .ml4 .pyx"
    ),
)

_BY_EXTENSION = {extension: language for language in LANGUAGES for extension in language.extensions.split()}
_BY_NAME = {language.name: language for language in (*LANGUAGES, TEXT)}
_BY_FILE_NAME = {"dockerfile": "script", "makefile": "script", "rakefile": "ruby", "gemfile": "ruby"}

#: Interpreters named in a `#!` line, for files without an extension.
_BY_INTERPRETER = {b"python": "python", b"sh": "bash", b"node": "javascript", b"ruby": "ruby", b"perl": "perl"}

#: Words that tell a C++ header from a C one: `.h` is both.
_CPP_MARKS = (b"namespace ", b"template<", b"template <", b"\nclass ", b"public:", b"private:", b"std::", b"virtual ")
SNIFF_BYTES = 16_384


def by_name(name: str) -> Language:
    """The language of this name; TEXT for an unknown one."""
    return _BY_NAME.get(name, TEXT)


def names() -> list[str]:
    """Of all languages."""
    return sorted(_BY_NAME)


def language_of(path: str, content: bytes) -> Language:
    """The language of a file by extension, file name or `#!` line; `.h` is looked into for C++."""
    name = PurePosixPath(path).name.lower()
    extension = PurePosixPath(name).suffix
    found = _BY_EXTENSION.get(extension)
    if found is None and name in _BY_FILE_NAME:
        return by_name(_BY_FILE_NAME[name])
    if found is None and not extension and content.startswith(b"#!"):
        first_line = content.split(b"\n", 1)[0]
        return next((by_name(lang) for mark, lang in _BY_INTERPRETER.items() if mark in first_line), TEXT)
    if extension == ".h" and any(mark in content[:SNIFF_BYTES] for mark in _CPP_MARKS):
        return by_name("cpp")
    return found or TEXT


#: Folders that name no module of their own.
_DROPPED_FOLDERS = frozenset({"src", "lib", "main", "java", "kotlin", "scala", "source", "sources"})
#: File names that stand for their folder.
_FOLDER_STEMS = {
    "python": frozenset({"__init__", "__main__"}),
    "rust": frozenset({"mod", "lib", "main"}),
    **dict.fromkeys(("javascript", "typescript", "tsx"), frozenset({"index"})),
}


def module_path(relative_path: str, language: Language, package: str = "") -> str:
    """The dotted name of a file: `src/pkg/__init__.py` -> `pkg`. `package` is put before it (the root's own name)."""
    path = PurePosixPath(relative_path)
    if not language.is_code:
        return relative_path
    folders = list(path.parts[:-1])
    while folders and folders[0] in _DROPPED_FOLDERS:
        folders.pop(0)
    folders = [folder for folder in folders if folder != "src"]
    stem = path.name.split(".", 1)[0] if path.name.endswith((".d.ts", ".test.ts")) else path.stem
    names = ([package] if package else []) + folders
    if stem not in _FOLDER_STEMS.get(language.name, ()) or not names:
        names.append(stem)
    return language.separator.join(names)
