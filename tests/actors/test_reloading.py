"""A runtime that is changed while requests run, and one that drains."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from callboard.actors.reloading import RELOADABLE
from callboard.actors.runtime import Runtime
from callboard.actors.settings import Settings
from callboard.actors.tools import tool
from callboard.protocol.errors import RuntimeFailure, UsageError
from callboard.providers.local.scripted import ScriptedCall, ScriptedTurn

CALL = ScriptedTurn(tool_calls=(ScriptedCall("wait", {}),))
