"""The system prompt a request has when its owner gives none."""

from __future__ import annotations

from pathlib import Path

_WORKSPACE_PROMPT = """\
You answer questions about the code in {workspace}. Look before you answer: request_code_context finds the code that a \
question is about, read_file and list_dir show the rest. Say only what the code shows, and name the place as file:lines.

Show code in the form in which the tools give it to you, with the absolute path and the byte offsets of the span:
<code="/absolute/path" #START:END>
...
</code>"""


def default_prompt(workspace: Path | None) -> str:
    """With a workspace: what the code tools are for and how code is written. Without one: nothing."""
    return _WORKSPACE_PROMPT.format(workspace=workspace) if workspace is not None else ""
