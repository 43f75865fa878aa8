"""What a decision about a call is told in: one sentence with the name of its tool and no full stop, without what stands
in the call's arguments.

A person who is asked reads it, and so does a model whose call is denied; logs and spans have it as `rule`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from callboard.protocol.tools import Decision, Risk

#: What a tool of a risk does: in the workspace (or nowhere in the file system), and where it leaves it.
_DOES: Final[Mapping[Risk, tuple[str, str]]] = MappingProxyType(
    {
        Risk.READ: ("only reads", "reads outside of the workspace"),
        Risk.NETWORK: ("connects to the network", "connects to the network and leaves the workspace"),
        Risk.WRITE: ("makes changes", "makes changes outside of the workspace"),
        Risk.EXECUTE: ("runs programs", "runs programs on what is outside of the workspace"),
        Risk.UNDECLARED: (
            "does not say what it changes",
            "does not say what it changes, and leaves the workspace",
        ),
    }
)
_NEEDS_APPROVAL: Final = "needs approval (needs_approval=True) and {}"
_EACH_TIME: Final = "you are asked each time"
#: What rules, and answers for always, do to the calls of a tool.
_DOES_TO: Final[Mapping[Decision, str]] = MappingProxyType(
    {
        Decision.ALLOW: "allows {}",
        Decision.ASK: "has you asked about {} each time",
        Decision.DENY: "denies {}",
    }
)


def what_it_does(name: str, risk: Risk, *, leaves: bool = False, needs_approval: bool = False) -> str:
    """A tool of this risk. `leaves`: it touches what is outside of the workspace."""
    does = _DOES[risk][leaves]
    return f"{name} {_NEEDS_APPROVAL.format(does) if needs_approval else does}"


def by_level(does: str, decision: Decision, level: str, because: str = "") -> str:
    """What a trust level, a mode or a policy says of what a tool does, and why it says no more than that."""
    does = f"{does} ({because})" if because else does
    if decision is Decision.ASK:
        return f"{does}; {_EACH_TIME}"
    return f"{does}, which {level} {'allows' if decision is Decision.ALLOW else 'does not allow'}"


def by_rule(name: str, decision: Decision, rule: str) -> str:
    """What a rule of the owner's says of a tool. `rule`: its number and its words, or another name of it."""
    return f"{rule} {_DOES_TO[decision].format(name)}"


def by_saved_answer(name: str, decision: Decision, kinds: str) -> str:
    """A person has answered for always, of calls that touch things of these kinds; "" for one very call."""
    return by_rule(f"{name} ({kinds})" if kinds else name, decision, "an answer that counts always")


def refused(name: str, why: str) -> str:
    """No rule can allow it."""
    return f"{name} may not touch this: {why}"


def not_understood(name: str, why: str) -> str:
    """It is not known what the call would do."""
    return f"it is not understood what {name} would do ({why}); {_EACH_TIME}"


def not_judged(name: str, why: str) -> str:
    """Nothing could be decided about the call."""
    return f"{name} could not be judged ({why}); {_EACH_TIME}"


def asked_since(name: str, why: str) -> str:
    """Each call of the tool is asked about, whatever the rules say."""
    return f"you are asked about {name} each time, since {why}"


def depends_on_call(name: str) -> str:
    """Of a tool that is judged call by call."""
    return f"each call of {name} is judged by its arguments"


def staged(name: str) -> str:
    """Of a tool whose calls change nothing: what they prepare is asked about."""
    return f"you are asked about what {name} has staged"


def side_by_side(name: str) -> str:
    """One command of a line takes the hold that another one needs."""
    return f"{name} runs a command that is allowed to do more beside one that must be held to reading; {_EACH_TIME}"


def allowed_with_its_command(name: str) -> str:
    """What a command touches is allowed with it."""
    return f"the rule that allows the command allows what {name} touches with it"
