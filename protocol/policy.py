"""Who may run a tool: a pure decision by risk, which fails closed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from callboard.protocol.tools import Risk, ToolContract


class Decision(StrEnum):
    """What happens when a model wants to run a tool."""

    ALLOW = "allow"
    ASK = "ask"
    """A person (or the owner's callback) decides, never the model."""
    DENY = "deny"


#: Reading is free; whatever changes something is asked about.
DEFAULT_DECISIONS = MappingProxyType(
    {
        Risk.READ: Decision.ALLOW,
        Risk.NETWORK: Decision.ALLOW,
        Risk.WRITE: Decision.ASK,
        Risk.EXECUTE: Decision.ASK,
    }
)


@dataclass(frozen=True, slots=True)
class Policy:
    """Decides by a tool's declared risk. A risk without a row is denied."""

    decisions: Mapping[Risk, Decision] = field(default_factory=lambda: DEFAULT_DECISIONS)

    def decide(self, contract: ToolContract) -> Decision:
        """What stands between the model's wish and the tool."""
        decision = self.decisions.get(contract.risk, Decision.DENY)
        if contract.needs_approval and decision is Decision.ALLOW:
            return Decision.ASK
        return decision
