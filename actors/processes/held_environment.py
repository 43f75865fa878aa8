"""The variables of a line that is held to reading: git runs nothing that a repository's configuration names.

The kernel holds whatever it runs (`confined.hold`); with these it need not, and prints what it prints without drivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

#: Programs that git's reading commands would run, and what else changes files or connects.
_GIT_SETTINGS: Final = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.editor": "false",
    "core.sshCommand": "false",
    "core.alternateRefsCommand": "false",
    "core.askPass": "false",
    "credential.helper": "",
    "gpg.program": "false",
    "gpg.ssh.program": "false",
    "gpg.x509.program": "false",
    "log.showSignature": "false",
    "maintenance.auto": "false",
}
#: As bash takes a function from its environment. Drivers of external diffs and text conversions are only switched off
#: by options; filters are by settings that have their names.
_GIT: Final = r"""() {
    local before=() name count=$GIT_CONFIG_COUNT
    while [[ $1 == -* ]]; do
        before+=("$1")
        if [[ $1 == -C ]]; then before+=("$2"); shift; fi
        shift
    done
    while IFS= read -r name; do
        [[ $name ]] || continue
        local -x "GIT_CONFIG_KEY_$count=$name" "GIT_CONFIG_VALUE_$count="
        count=$((count + 1))
    done <<< "$(command git "${before[@]}" config --name-only --get-regexp \
        '^filter\..*\.(clean|smudge|process|required)$' 2>/dev/null)"
    local -x GIT_CONFIG_COUNT=$count
    case $1 in
        log | show | diff | whatchanged | diff-tree)
            command git "${before[@]}" "$1" --no-ext-diff --no-textconv "${@:2}" ;;
        blame | grep) command git "${before[@]}" "$1" --no-textconv "${@:2}" ;;
        *) command git "${before[@]}" "$@" ;;
    esac
}"""
SET: Final[Mapping[str, str]] = {
    **{"PAGER": "cat", "GIT_PAGER": "cat", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"},
    **{"GIT_ALLOW_PROTOCOL": "none", "GIT_NO_LAZY_FETCH": "1", "GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS))},
    **{f"GIT_CONFIG_KEY_{at}": name for at, name in enumerate(_GIT_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{at}": value for at, value in enumerate(_GIT_SETTINGS.values())},
    "BASH_FUNC_git%%": _GIT,
}
#: They name options, files or programs for what is run.
DROPPED: Final = (
    *("BASH_ENV", "ENV", "CDPATH", "GREP_OPTIONS", "RIPGREP_CONFIG_PATH", "GIT_EXTERNAL_DIFF", "GIT_DIR"),
    *("GIT_WORK_TREE", "GIT_TRACE", "GIT_TRACE2", "GIT_TRACE2_EVENT", "GIT_TRACE2_PERF", "NODE_OPTIONS"),
    *("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "PYTHONSTARTUP", "LESSOPEN", "LESSCLOSE"),
)
