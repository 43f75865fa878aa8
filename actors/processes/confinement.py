"""What a tool in a process may touch, by its declared risk: the table, and what this kernel can hold a tool to.

Nothing is done here; `confined.py` does it, in the child.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

from msgspec import Struct

from callboard.actors.processes import landlock, seccomp
from callboard.actors.processes.linux import IS_LINUX
from callboard.protocol.errors import UsageError
from callboard.protocol.tools import Isolation, Risk, ToolContract

#: The least version of Landlock that `required` is content with: an older one does not see files being cut off.
REQUIRED_LANDLOCK: Final = 3


class Confine(StrEnum):
    """Whether tools in processes are held to their declared risk."""

    OFF = "off"
    AUTO = "auto"
    """Where the kernel can."""
    REQUIRED = "required"
    """A runtime does not start where the kernel cannot."""


class Rights(Struct, frozen=True):
    """What a risk allows, beside reading its paths and what Python needs, and a scratch folder."""

    writes: bool = False
    connects: bool = False
    executes: bool = False
    """Programs of its paths and its scratch folder, and such as are in no file; terminals and shared memory."""


#: A risk that is not in the table is not confined.
RIGHTS: Final[Mapping[Risk, Rights]] = {
    Risk.READ: Rights(),
    Risk.NETWORK: Rights(connects=True),
    Risk.WRITE: Rights(writes=True),
    Risk.EXECUTE: Rights(writes=True, connects=True, executes=True),
}


class KernelSupport(Struct, frozen=True):
    """What a kernel has for confinement."""

    landlock: int
    """Its version; 0: none."""
    seccomp: bool

    @property
    def lacks(self) -> str:
        """What no confinement can do without and this kernel has not; "" where nothing is missing."""
        missing = [] if self.landlock else ["Landlock"]
        return " and ".join(missing if self.seccomp else [*missing, "a seccomp filter for this processor"])

    def __str__(self) -> str:
        has_landlock = f"Landlock version {self.landlock}" if self.landlock else "no Landlock"
        return f"{has_landlock}, {'seccomp filters' if self.seccomp else 'no seccomp filters for this processor'}"


def kernel_support() -> KernelSupport:
    """Of this machine's kernel. Two system calls."""
    if not IS_LINUX:
        return KernelSupport(0, seccomp=False)
    return KernelSupport(landlock.version(), seccomp.is_supported())


class Confinement(Struct, frozen=True):
    """What a tool is held to."""

    risk: Risk
    why_not: str = ""
    """It is not confined, for this reason."""
    paths: tuple[str, ...] = ()
    """What it may touch; absolute."""
    hosts: tuple[str, ...] | None = None
    """The hosts it declares. Not enforced: a tool that may connect may connect to any."""

    @property
    def is_on(self) -> bool:
        """Is it confined at all?"""
        return not self.why_not

    @property
    def rights(self) -> Rights:
        """What its risk allows."""
        return RIGHTS[self.risk]

    def __str__(self) -> str:
        """One line for people."""
        if self.why_not:
            return f"not confined: {self.why_not}"
        where = ", ".join(self.paths) or "no files of yours"
        rights = self.rights
        words = [f"reads and writes {where}" if rights.writes else f"reads {where}"]
        words += ["runs programs"] if rights.executes else []
        words += [self._connections()]
        return "; ".join(words)

    def _connections(self) -> str:
        if not self.rights.connects:
            return "no network"
        if self.hosts is None:
            return "any host"
        return f"any host (hosts={', '.join(self.hosts) or 'none'} is not enforced)"


def confinement_of(
    contract: ToolContract, kernel: KernelSupport, mode: Confine = Confine.AUTO, workspace: Path | str | None = None
) -> Confinement:
    """How a tool of this contract runs."""
    if contract.isolation is not Isolation.PROCESS:
        return Confinement(contract.risk, f"it runs in the runtime's own process (isolation={contract.isolation})")
    if contract.risk not in RIGHTS:
        return Confinement(contract.risk, "its author declared no risk")
    if mode is Confine.OFF:
        return Confinement(contract.risk, "confine is off")
    if missing := kernel.lacks:
        return Confinement(contract.risk, f"this kernel has not {missing}")
    root = str(workspace) if workspace is not None else ""
    named = contract.paths if contract.paths is not None else (root,) if root else ()
    places = tuple(dict.fromkeys(os.path.realpath(os.path.join(root, os.path.expanduser(each))) for each in named))
    return Confinement(contract.risk, "", places, contract.hosts)


def check_hosts(name: str, confinement: Confinement, mode: Confine) -> None:
    """Raise UsageError for hosts that are declared where confinement is required: the kernel does not enforce them."""
    if mode is Confine.REQUIRED and confinement.is_on and confinement.rights.connects and confinement.hosts is not None:
        raise UsageError(
            f"tool {name} declares hosts, which cannot be enforced yet, and confine='required' promises nothing that "
            "is not: leave hosts out, or use confine='auto'"
        )


def what_is_missing(kernel: KernelSupport, mounts: bool, why_no_mounts: str) -> str:
    """What `required` needs and this machine has not; "" where nothing is missing."""
    missing = [kernel.lacks] if kernel.lacks else []
    if 0 < kernel.landlock < REQUIRED_LANDLOCK:
        missing.append(f"version {REQUIRED_LANDLOCK} of Landlock (it has {kernel.landlock})")
    if not mounts:
        missing.append(f"mounts of a tool's own{f' ({why_no_mounts})' if why_no_mounts else ''}")
    return ", nor ".join(missing)
