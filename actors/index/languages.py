"""Which language a file is in, and how its symbols are named: a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath

from callboard.actors.index import language_queries as queries


@dataclass(frozen=True, slots=True)
class Language:
    """One language, or kind of text."""

    name: str
    grammar: str = ""
    """Name in semble-grammars; empty for text without a grammar."""
    query: str = ""
    extensions: str = ""
    separator: str = "."
    """Between the names of a canonical path."""
    prose: bool = False
    """Documentation or data: found, but behind code."""


TEXT = Language("text", prose=True)

LANGUAGES = (
    Language("python", "python", queries.PYTHON, ".py .pyi .pyw"),
    Language("rust", "rust", queries.RUST, ".rs", "::"),
    Language("javascript", "javascript", queries.JAVASCRIPT, ".js .jsx .mjs .cjs"),
    Language("typescript", "typescript", queries.TYPESCRIPT, ".ts .mts .cts"),
    Language("tsx", "tsx", queries.TYPESCRIPT, ".tsx"),
    Language("go", "go", queries.GO, ".go"),
    Language("java", "java", queries.JAVA, ".java"),
    Language("c", "c", queries.C, ".c .h"),
    Language("cpp", "cpp", queries.CPP, ".cc .cpp .cxx .hh .hpp .hxx .ipp .cu .cuh", "::"),
    Language("csharp", "csharp", queries.CSHARP, ".cs"),
    Language("ruby", "ruby", queries.RUBY, ".rb .rake .gemspec", "::"),
    Language("php", "php", queries.PHP, ".php", "::"),
    Language("kotlin", "kotlin", queries.KOTLIN, ".kt .kts"),
    Language("swift", "swift", queries.SWIFT, ".swift"),
    Language("scala", "scala", queries.SCALA, ".scala .sc"),
    Language("bash", "bash", queries.BASH, ".sh .bash .zsh"),
    Language("lua", "lua", queries.LUA, ".lua"),
    Language("elixir", "elixir", queries.ELIXIR, ".ex .exs"),
    Language("dart", "dart", queries.DART, ".dart"),
    Language("zig", "zig", queries.ZIG, ".zig"),
    Language("haskell", "haskell", queries.HASKELL, ".hs"),
    Language("julia", "julia", queries.JULIA, ".jl"),
    Language("ocaml", "ocaml", queries.OCAML, ".ml"),
    Language("perl", "perl", queries.PERL, ".pl .pm", "::"),
    Language("solidity", "solidity", queries.SOLIDITY, ".sol"),
    Language("sql", "sql", queries.SQL, ".sql"),
    Language("hcl", "hcl", queries.HCL, ".tf .hcl"),
    Language("proto", "proto", queries.PROTO, ".proto"),
    Language("template", extensions=".vue .svelte .astro .html .htm .jinja .j2 .erb .hbs .css .scss .less .cmake .mk"),
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
    "javascript": frozenset({"index"}),
    "typescript": frozenset({"index"}),
    "tsx": frozenset({"index"}),
}


def module_path(relative_path: str, language: Language, package: str = "") -> str:
    """The dotted name of a file: `src/pkg/__init__.py` -> `pkg`. `package` is put before it (the root's own name)."""
    path = PurePosixPath(relative_path)
    if not language.query:
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
