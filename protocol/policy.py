"""Who decides about a call, as data: the table by risk, trust and place, modes, and the owner's own rules. It is pure.

What a call would touch is found out elsewhere (actors/policy/): paths are resolved and commands parsed before they come
here as `Touch`. This file only looks up what the owner has said of such things. The strictest decision counts, of all
that a call would touch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import cached_property
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from callboard.protocol.errors import UsageError
from callboard.protocol.ids import ToolName
from callboard.protocol.patterns import matches
from callboard.protocol.tools import Decision, Hold, Origin, Risk, ToolContract
from callboard.protocol.values import Value


class AccessKind(StrEnum):
    """What a call does to the thing that it names."""

    READ = "read"
    """A file or folder is read or listed."""
    WRITE = "write"
    """A file or folder is made or changed."""
    DELETE = "delete"
    """A file or folder is removed, or moved away."""
    COMMAND = "command"
    """A line is run by a shell."""
    ADDRESS = "address"
    """A URL or a host is connected to."""


class Access(Value, frozen=True):
    """One thing that a call would touch."""

    kind: AccessKind
    value: str
    """As the model wrote it: a path (relative to the workspace, or absolute), a command line, a URL or a host."""
    argument: str = ""
    """Where it stands in the call's arguments, as a path ("path", "edits.0.file")."""


class Judgement(Struct, frozen=True):
    """A decision with the rule that it follows from, in words: for a person, a log and the model."""

    decision: Decision
    rule: str
    hold: Hold = Hold.NONE
    """What an allowed call is kept to."""


class Trust(StrEnum):
    """How much runs unasked."""

    CAREFUL = "careful"
    """Reading in the workspace; changes are asked about there and denied elsewhere."""
    BALANCED = "balanced"
    """Also the network, and functions whose risk is not declared where the owner himself passed them."""
    MANUAL = "manual"
    """Reading in the workspace; a person is asked about all the rest."""


class Mode(StrEnum):
    """What a runtime, or one question, is for. The strictest comes first."""

    ASK = "ask"
    """Answers only: tools and commands that read. Edits are proposed, and applied by their owner alone."""
    PLAN = "plan"
    """The network besides. Nothing is changed, and no program run that does more than read."""
    BUILD = "build"
    """All tools, by table and rules."""

    def is_within(self, other: Mode) -> bool:
        """Is it as strict as the other one, or stricter?"""
        return list(Mode).index(self) <= list(Mode).index(other)


class Location(StrEnum):
    """Where the thing is that a call would touch."""

    INSIDE = "inside"
    """In the workspace, or nowhere in the file system: no path says otherwise."""
    OUTSIDE = "outside"


DecisionName = Literal["allow", "ask", "deny"]
Row = Decision | Mapping[Origin, Decision] | Mapping[Location, Decision] | Mapping[Origin | Location, Decision]
"""What a table says of one risk: one decision for all, or by where a tool came from, or by place, or by both, of which
the stricter one counts. Of the origins, or of the places, what such a row leaves out is denied."""
Table = Mapping[Risk, Row]

_Cells = Mapping[Origin | Location, Decision]
#: A table as it is kept.
_Known = Mapping[Risk, Decision | _Cells]
_ALLOW, _ASK, _DENY = Decision.ALLOW, Decision.ASK, Decision.DENY
#: From the freest to the strictest.
_STRICTNESS: Final = {_ALLOW: 0, _ASK: 1, _DENY: 2}


def _by_place(inside: Decision, outside: Decision) -> _Cells:
    return MappingProxyType({Location.INSIDE: inside, Location.OUTSIDE: outside})


#: A function that its owner passed to the runtime needs no declared risk at `balanced`; one from elsewhere may do
#: anything, so a person decides.
_BY_ORIGIN: Final[_Cells] = MappingProxyType(
    {Location.INSIDE: _ALLOW, Location.OUTSIDE: _ASK, Origin.OWNER: _ALLOW, Origin.ELSEWHERE: _ASK}
)
#: Who decides, by trust, risk and place. Nothing in it allows what destroys: see `Policy.judge`.
TABLES: Final[Mapping[Trust, _Known]] = MappingProxyType(
    {
        Trust.CAREFUL: MappingProxyType(
            {
                Risk.READ: _by_place(_ALLOW, _ASK),
                Risk.NETWORK: _by_place(_ASK, _ASK),
                Risk.WRITE: _by_place(_ASK, _DENY),
                Risk.EXECUTE: _by_place(_ASK, _DENY),
                Risk.UNDECLARED: _by_place(_ASK, _DENY),
            }
        ),
        Trust.BALANCED: MappingProxyType(
            {
                Risk.READ: _by_place(_ALLOW, _ASK),
                Risk.NETWORK: _by_place(_ALLOW, _ASK),
                Risk.WRITE: _by_place(_ASK, _ASK),
                Risk.EXECUTE: _by_place(_ASK, _ASK),
                Risk.UNDECLARED: _BY_ORIGIN,
            }
        ),
        Trust.MANUAL: MappingProxyType(
            {
                Risk.READ: _by_place(_ALLOW, _ASK),
                Risk.NETWORK: _by_place(_ASK, _ASK),
                Risk.WRITE: _by_place(_ASK, _ASK),
                Risk.EXECUTE: _by_place(_ASK, _ASK),
                Risk.UNDECLARED: _by_place(_ASK, _ASK),
            }
        ),
    }
)


class Touch(Struct, frozen=True):
    """One thing that a call would touch, as it was found to be: what rules and table are asked about."""

    kind: AccessKind
    place: Location = Location.INSIDE
    risk: Risk | None = None
    """By which row of the table it is judged; None: the tool's own risk."""
    forms: tuple[str, ...] = ()
    """What the patterns of rules are compared with: a path as it was resolved (below the workspace relative to it, and
    absolute), the words of a command, a host."""
    aliases: tuple[str, ...] = ()
    """What else it is called: a path as it was written, a command without its folder. Rules that ask or deny match by
    these too, rules that allow do not."""
    destroys: str = ""
    """Why it could not be undone; "" if it could."""
    unclear: str = ""
    """Why it is not known what it would do; "" if it is."""
    guarded: str = ""
    """Why only a rule, or a person, allows a change of it, though changes are allowed; "" if they suffice."""
    refused: str = ""
    """Why no rule can allow it, such as a secret file; "" if one can."""
    touches: tuple[Touch, ...] = ()
    """Of a command: its paths. A rule that allows the command allows them."""
    exposes: str = ""
    """Why it could read what the model must not see; "" if it could not. Then only a rule allows it."""
    hold: Hold = Hold.NONE
    """Of a command: what it has to be kept to where the table allows it."""


_PATTERNS: Final = ("command", "path", "address", "arguments")
_PATTERN_OF: Final[Mapping[AccessKind, str]] = {
    AccessKind.READ: "path",
    AccessKind.WRITE: "path",
    AccessKind.DELETE: "path",
    AccessKind.COMMAND: "command",
    AccessKind.ADDRESS: "address",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What the owner says of the calls that it matches.

        Rule("run_command", "git status*", "allow")
        Rule("*", path="secrets/**", decision="deny")

    All that is given must match. `tool` and `command` are patterns in which `*` is any text, `?` one character and
    `[ab]` one of these. In `path` and `address`, `*` and `?` match no `/`, `**` matches any number of folders, and
    `secrets/**` also `secrets` itself. Rules that ask or deny do not tell upper and lower case apart. Raises UsageError
    for a decision, a risk or a pattern that there is not.
    """

    tool: str = "*"
    command: str = ""
    """Compared with each simple command of a line, as the shell reads it: its words, quoted where they need it."""
    decision: Decision | DecisionName | Literal[""] = ""
    path: str = ""
    """Compared with the path that a path leads to: relative to the workspace, outside of it absolute."""
    address: str = ""
    """Compared with the host of a URL, in lower case."""
    risk: Risk | Literal["", "read", "write", "execute", "network", "undeclared"] = ""
    """Only for tools of this risk."""
    arguments: str = ""
    """Only this very call: its arguments as JSON with sorted keys and without blanks (`exact_arguments`)."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not isinstance(getattr(self, each.name), str):
                raise UsageError(f"a rule's {each.name} must be a text, got {getattr(self, each.name)!r}")
        if self.decision not in list(Decision):
            raise UsageError(f"a rule needs a decision, one of {', '.join(Decision)}; got {str(self.decision)!r}")
        if self.risk and self.risk not in list(Risk):
            raise UsageError(f"a rule's risk is one of {', '.join(Risk)}; got {str(self.risk)!r}")
        if not self.tool:
            raise UsageError('a rule names a tool, or "*" for all of them')
        if sum(bool(getattr(self, name)) for name in _PATTERNS) > 1:
            raise UsageError(f"a rule has one of {', '.join(_PATTERNS)}; write a rule for each")
        object.__setattr__(self, "decision", Decision(self.decision))
        try:
            for name in ("tool", "command", "path", "address"):
                if pattern := str(getattr(self, name)):
                    matches(pattern, "", is_path=name in ("path", "address"))
        except re.error as error:
            raise UsageError(f"a rule's {name} {str(getattr(self, name))!r} is no pattern: {error}") from None

    @property
    def has_pattern(self) -> bool:
        """Does it depend on a call's arguments?"""
        return any(getattr(self, name) for name in _PATTERNS)

    @property
    def is_strict(self) -> bool:
        """Does it ask or deny?"""
        return self.decision != _ALLOW

    def is_about(self, name: str, contract: ToolContract) -> bool:
        """Is it about calls of this tool?"""
        if self.risk and self.risk != contract.risk:
            return False
        return self.tool == "*" or matches(self.tool, name, is_path=False, ignore_case=self.is_strict)

    def fits(self, touched: Touch, arguments: str) -> bool:
        """Does it match this, in a call of a tool that it is about?"""
        if self.arguments:
            return self.arguments == arguments
        if not self.has_pattern:
            return True
        kind = _PATTERN_OF[touched.kind]
        pattern = str(getattr(self, kind))
        if not pattern or (touched.unclear and not self.is_strict):
            return False
        forms = (*touched.forms, *touched.aliases) if self.is_strict else touched.forms
        is_path = kind != "command"
        return any(matches(pattern, form, is_path=is_path, ignore_case=self.is_strict) for form in forms)

    def __str__(self) -> str:
        shown = [self.tool, *(str(getattr(self, name)) for name in ("risk", "command", "path", "address"))]
        return " ".join([*filter(None, shown), *(["these arguments"] if self.arguments else [])])


#: What each mode says besides the owner's rules: of what a call does, not of what its tool might do. An edit only
#: proposes.
MODES: Final[Mapping[Mode, tuple[Rule, ...]]] = MappingProxyType(
    {
        Mode.ASK: tuple(Rule(risk=risk, decision=_DENY) for risk in Risk if risk is not Risk.READ),
        Mode.PLAN: (
            Rule(risk=Risk.WRITE, decision=_DENY),
            Rule(risk=Risk.EXECUTE, decision=_DENY),
            Rule(risk=Risk.UNDECLARED, decision=_ASK),
        ),
        Mode.BUILD: (),
    }
)


#: What each mode is for, in words.
MEANINGS: Final[Mapping[Mode, str]] = MappingProxyType(
    {
        Mode.ASK: "answers only: tools and commands that read; edits are proposed",
        Mode.PLAN: "the network and notes besides; nothing is changed or run, but what reads",
        Mode.BUILD: "all tools, by table and rules",
    }
)


@dataclass(frozen=True)
class Policy:
    """Decides which calls run unasked, which a person is asked about, and which are denied.

        Policy(trust="careful", rules=(Rule("run_command", "git status*", "allow"),))
        Policy({Risk.READ: Decision.ALLOW, Risk.UNDECLARED: {Origin.OWNER: Decision.ASK}})

    A table of one's own replaces that of the trust level; a risk without a row is denied. Everything may be given by
    its value ("read", "owner", "inside", "ask"). Raises UsageError for others.
    """

    table: Table | None = None
    """None: that of the trust level (TABLES)."""
    trust: Trust | Literal["careful", "balanced", "manual"] = Trust.BALANCED
    mode: Mode | Literal["ask", "plan", "build"] = Mode.BUILD
    rules: Sequence[Rule] = ()
    """Where several match, the strictest counts. What one allows, the table is not asked about."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "trust", _member("trust", Trust, self.trust))
        object.__setattr__(self, "mode", _member("mode", Mode, self.mode))
        rules = self.rules
        if isinstance(rules, str) or not isinstance(rules, Sequence) or not all(isinstance(r, Rule) for r in rules):
            raise UsageError(
                f'rules must be a list of Rule, such as Rule("run_command", "ls*", "allow"), not {rules!r}'
            )
        object.__setattr__(self, "rules", tuple(rules))
        if self.table is not None:
            object.__setattr__(self, "table", MappingProxyType(_table(self.table)))

    def in_mode(self, mode: Mode | None) -> Policy:
        """The same for questions of this mode; None: its own."""
        if mode is None or mode == self.mode:
            return self
        found = copy(self)  # also of a subclass, whatever it is made with
        object.__setattr__(found, "mode", mode)
        return found

    @cached_property
    def decisions(self) -> _Known:
        """The table that counts."""
        return TABLES[Trust(self.trust)] if self.table is None else _table(self.table)

    def as_tables(self) -> dict[str, object]:
        """As a configuration file has it: what was given, in texts."""
        rules = [
            {each.name: str(value) for each in fields(rule) if (value := getattr(rule, each.name))}
            for rule in self.rules
        ]
        said: dict[str, object] = {"trust": str(self.trust), "mode": str(self.mode), "rules": rules}
        if self.table is not None:
            said["table"] = {str(risk): _as_text(row) for risk, row in self.decisions.items()}
        return said

    def decide(self, contract: ToolContract) -> Decision:
        """What the table says of a tool that stays in the workspace.

        A subclass may decide by itself here; then nothing is decided more freely than it says, but by the rules.
        """
        return self._looked_up(contract, Location.INSIDE)

    def offer(self, name: ToolName, contract: ToolContract, *, has_accesses: bool = False) -> Judgement:
        """What can be said of a tool before it is called. A tool that is denied is not offered.

        `has_accesses`: its calls say what they touch. Then it depends on the call, unless all of them are denied.
        """
        rules = self._rules_about(name, contract)
        if contract.is_bounded and contract.risk is Risk.READ:
            has_accesses = has_accesses and any(rule.path for _, rule in rules)
        if not has_accesses and not any(rule.arguments for _, rule in rules):
            return self.judge(name, contract)
        whole = [each for each in rules if not each[1].has_pattern]
        can_read = has_accesses and contract.can_be_held
        by_mode = None if can_read else self._by_mode(name, contract, Touch(AccessKind.READ))
        if by_mode is not None and by_mode.decision is _DENY:
            return by_mode
        said = self._of_one(name, contract, Touch(AccessKind.READ), whole, "", has_mode=False)
        denies_all = any(rule.decision is _DENY for _, rule in whole)
        may_allow = any(not rule.is_strict for _, rule in rules)
        if said.decision is _DENY and (denies_all or not may_allow):
            return said
        return Judgement(_ASK, depends_on_call(name))

    def judge(
        self,
        name: ToolName,
        contract: ToolContract,
        touched: Iterable[Touch] = (),
        arguments: str = "",
        *,
        after_untrusted: bool = False,
    ) -> Judgement:
        """What happens to a call that touches this; nothing: what is said of its tool.

        Deny wins over all. What is not understood is asked about, unless a rule allows every call of the tool, or this
        very one. What could not be undone, or could read secrets, is never allowed but by a rule; neither is a change,
        a program or the network `after_untrusted`: in a request that has read text which may try to steer the model.
        """
        rules = self._rules_about(name, contract)
        parts = tuple(touched) or (Touch(AccessKind.READ),)
        said = [self._of_one(name, contract, each, rules, arguments, after_untrusted) for each in parts]
        if contract.asks_because:
            said.insert(0, Judgement(_ASK, asked_since(name, contract.asks_because)))
        found = strictest(said)
        return found if found.decision is not _ALLOW else _held(name, found, [*zip(parts, said, strict=True)])

    def _of_one(
        self,
        name: ToolName,
        contract: ToolContract,
        touched: Touch,
        rules: Sequence[tuple[int, Rule]],
        arguments: str,
        after_untrusted: bool = False,
        *,
        is_allowed: bool = False,
        has_mode: bool = True,
    ) -> Judgement:
        if touched.refused:
            return Judgement(_DENY, refused(name, touched.refused))
        by_mode = self._by_mode(name, contract, touched) if has_mode else None
        fitting = [each for each in rules if each[1].fits(touched, arguments)]
        strict = [self._by_rule(name, *each) for each in fitting if each[1].is_strict]
        allowing = [each for each in fitting if not each[1].is_strict]
        if strict:
            said = strictest(strict)
        elif touched.unclear and not _allows_unclear(allowing, rules):
            asked = Judgement(_ASK, not_understood(name, touched.unclear))
            said = strictest([asked, self._by_table(name, contract, touched, after_untrusted)])
        elif allowing:
            said = self._by_rule(name, *allowing[0])
        elif is_allowed:
            said = Judgement(_ALLOW, allowed_with_its_command(name))
        else:
            said = self._by_table(name, contract, touched, after_untrusted)
        inner = (
            self._of_one(
                name, contract, each, rules, arguments, after_untrusted, is_allowed=is_allowed or bool(allowing)
            )
            for each in touched.touches
        )
        if said.decision is _ALLOW and self.mode != Mode.BUILD and touched.kind is AccessKind.COMMAND:
            said = replace(said, hold=touched.hold)  # also what a rule of the owner allows only reads here
        return strictest([*filter(None, [by_mode]), said, *inner])

    def _by_mode(self, name: ToolName, contract: ToolContract, touched: Touch) -> Judgement | None:
        """None where the mode says nothing of it."""
        risk = touched.risk or contract.risk
        if touched.kind is AccessKind.COMMAND and not (risk is Risk.READ and touched.hold):
            risk = Risk.EXECUTE  # what connects, and what the kernel cannot hold to reading
        rule = next((each for each in MODES[Mode(self.mode)] if each.risk == risk), None)
        if rule is None:
            return None
        decision = _ASK if contract.stages and risk is Risk.WRITE else Decision(rule.decision)
        return Judgement(decision, by_level(what_it_does(name, risk), decision, f"mode {self.mode}"))

    def _by_table(self, name: ToolName, contract: ToolContract, touched: Touch, after_untrusted: bool) -> Judgement:
        risk, place = touched.risk or contract.risk, touched.place
        seen = contract if risk is contract.risk else replace(contract, risk=risk)
        decision = self.decide(seen)
        if place is Location.OUTSIDE:
            decision = _stricter(decision, self._looked_up(seen, place))
        does = what_it_does(name, risk, leaves=place is Location.OUTSIDE, needs_approval=contract.needs_approval)
        because, hold = touched.destroys or touched.guarded, Hold.NONE
        if decision is _ALLOW:
            because = because or touched.exposes
            if after_untrusted and risk is not Risk.READ:
                because = because or _AFTER_UNTRUSTED
            decision, hold = (_ASK, Hold.NONE) if because else (_ALLOW, touched.hold)
        return Judgement(decision, by_level(does, decision, self._level, because), hold)

    def _by_rule(self, name: ToolName, number: int, rule: Rule) -> Judgement:
        decision = Decision(rule.decision)
        return Judgement(decision, by_rule(name, decision, f"rule {number} ({rule})"))

    @cached_property
    def _level(self) -> str:
        """What its own table, or that of its trust level, is called in a judgement."""
        is_own = self.table is not None or type(self).decide is not Policy.decide
        return "the policy" if is_own else f"trust {self.trust}"

    def _looked_up(self, contract: ToolContract, place: Location) -> Decision:
        row = self.decisions.get(contract.risk, _DENY)
        decision = row if isinstance(row, Decision) else _of_row(row, (contract.origin, place))
        return _stricter(decision, _ASK) if contract.needs_approval else decision

    def _rules_about(self, name: ToolName, contract: ToolContract) -> list[tuple[int, Rule]]:
        """With the number of each."""
        return [each for each in enumerate(self.rules, 1) if each[1].is_about(name, contract)]


_AFTER_UNTRUSTED: Final = "the request has read untrusted text"


def strictest(judgements: Iterable[Judgement]) -> Judgement:
    """The first of those that decide most strictly. Of none: ask."""
    return max(judgements, key=lambda each: _STRICTNESS[each.decision], default=Judgement(_ASK, "no decision"))


def _held(name: ToolName, found: Judgement, said: Sequence[tuple[Touch, Judgement]]) -> Judgement:
    """With the hold of all its commands, which one process runs: a command that may do more takes it from those that
    can do without, and is not run unasked beside one that cannot."""
    holds = [judged.hold for touched, judged in said if touched.kind is AccessKind.COMMAND]
    if Hold.NONE not in holds:
        return replace(found, hold=max(holds, key=list(Hold).index, default=Hold.NONE))
    if Hold.READING_BELOW in holds:
        return Judgement(_ASK, side_by_side(name))
    return replace(found, hold=Hold.NONE)


def _stricter(one: Decision, other: Decision) -> Decision:
    return max(one, other, key=_STRICTNESS.__getitem__)


def _allows_unclear(allowing: Iterable[tuple[int, Rule]], rules: Iterable[tuple[int, Rule]]) -> bool:
    """Does a rule allow even what is not understood? Not where another one might deny it if it were."""
    might_deny = any(rule.is_strict and rule.has_pattern for _, rule in rules)
    return any(rule.arguments or not (rule.has_pattern or might_deny) for _, rule in allowing)


def _of_row(row: _Cells, keys: Sequence[Origin | Location]) -> Decision:
    """The strictest that the row says of these; a family of keys that it does not name at all does not count."""
    counted = [key for key in keys if any(type(each) is type(key) for each in row)]
    return max((row.get(key, _DENY) for key in counted), key=_STRICTNESS.__getitem__, default=_DENY)


def _table(given: Table) -> dict[Risk, Decision | _Cells]:
    try:
        return {Risk(risk): _row(row) for risk, row in dict(given).items()}
    except (TypeError, ValueError) as error:
        known = f"the risks are {', '.join(Risk)}, the decisions {', '.join(Decision)}"
        by_key = f"and a row may have one for {' and '.join(Origin)}, or for {' and '.join(Location)}"
        raise UsageError(f"a policy's table maps each risk to a decision; {known}, {by_key} ({error})") from None


def _row(row: Row) -> Decision | _Cells:
    if not isinstance(row, Mapping):
        return Decision(row)
    return MappingProxyType({_key(key): Decision(decision) for key, decision in row.items()})


def _key(key: Origin | Location) -> Origin | Location:
    return Origin(key) if key in list(Origin) else Location(key)


def _as_text(row: Decision | _Cells) -> object:
    return str(row) if isinstance(row, Decision) else {str(key): str(decision) for key, decision in row.items()}


def _member(name: str, kind: type[Trust] | type[Mode], value: str) -> Trust | Mode:
    if value not in list(kind):
        raise UsageError(f"{name} is one of {', '.join(kind)}; got {value!r}")
    return kind(value)


# What a decision is told in: one sentence with the name of its tool and no full stop, without what stands in the call's
# arguments. A person who is asked reads it, and so does a model whose call is denied; logs and spans have it as `rule`.

#: What a tool of a risk does: in the workspace (or nowhere in the file system), and where it leaves it.
_DOES: Final[Mapping[Risk, tuple[str, str]]] = MappingProxyType(
    {
        Risk.READ: ("only reads", "reads outside of the workspace"),
        Risk.NETWORK: ("connects to the network", "connects to the network and leaves the workspace"),
        Risk.WRITE: ("makes changes", "makes changes outside of the workspace"),
        Risk.EXECUTE: ("runs programs", "runs programs on what is outside of the workspace"),
        Risk.UNDECLARED: ("does not say what it changes", "does not say what it changes, and leaves the workspace"),
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
