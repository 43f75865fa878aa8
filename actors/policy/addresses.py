"""Which addresses may be connected to for a model: none in private, local or special networks, unless allowed.

Names are looked up here, once. Whoever connects must use the addresses that were found, since a name may lead elsewhere
at the next look (DNS rebinding); `CheckedAddress.addresses` are for that.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import unicodedata
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from callboard.protocol.errors import UsageError

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
Lookup = Callable[[str], Iterable[str]]
"""The addresses of a name. Raises OSError."""

#: A name server answers in a fraction of a second, or not at all.
LOOKUP_SECONDS: Final = 5.0
SCHEMES: Final = frozenset({"http", "https", "ws", "wss"})
#: What inet_aton(3) reads as an address: 1 to 4 numbers, decimal, octal or hexadecimal. A name's last part begins with
#: a letter (RFC 3696), so this is never one.
_NUMERIC: Final = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)(?:\.(?:0x[0-9a-f]*|[0-9]+)){0,3}", re.IGNORECASE)
_NAME: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*", re.IGNORECASE)
#: Networks that carry an IPv4 address in an IPv6 one, with how far its lowest bit is from that of the whole.
_CARRY_IPV4: Final = (
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),
    (ipaddress.IPv6Network("::/96"), 0),
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64, RFC 6052
    (ipaddress.IPv6Network("64:ff9b:1::/48"), 0),  # NAT64 of one's own network, RFC 8215
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4, RFC 3056
)
#: RFC 6890's protocol assignments: a cloud has its metadata service at 192.0.0.192, which Python 3.11 takes as global.
_RESERVED: Final = ipaddress.IPv4Network("192.0.0.0/24")
#: Teredo (RFC 4380) hides a client's address in its bits, ISATAP (RFC 5214) an address behind 0:5efe.
_HIDING: Final = (ipaddress.IPv6Network("2001::/32"),)
_ISATAP: Final = 0x5EFE


class CheckedAddress(Struct, frozen=True):
    """A host, and what was found about it."""

    host: str
    """In lower case, without port and brackets; "" where there is none."""
    addresses: tuple[str, ...] = ()
    """To connect to, in place of the name."""
    refused: str = ""
    """Why it may not be connected to; "" if it may."""


class AllowedAddresses:
    """Hosts and networks that the owner allows: "localhost", "*.example.internal", "10.0.0.0/8", "127.0.0.1".

    Raises UsageError for what is neither.
    """

    def __init__(self, given: Iterable[str] = ()) -> None:
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._names: list[str] = []
        for each in given:
            try:
                self._networks.append(ipaddress.ip_network(each.strip("[]")))
            except ValueError:
                name = each.lower().rstrip(".")
                if not _NAME.fullmatch(name.removeprefix("*.")) or _NUMERIC.fullmatch(name):
                    raise UsageError(
                        f"{each!r} is neither a host nor a network; write localhost, *.example.com, 127.0.0.1 or "
                        "10.0.0.0/8 (without host bits)"
                    ) from None
                self._names.append(name)

    def allows_name(self, host: str) -> bool:
        """Is it one of the hosts?"""
        return any(
            host.endswith(name[1:]) and host != name[2:] if name.startswith("*.") else host == name
            for name in self._names
        )

    def allows(self, address: IpAddress) -> bool:
        """Is it in one of the networks?"""
        return any(address in network for network in self._networks)


NONE_ALLOWED: Final = AllowedAddresses()


def look_up(host: str) -> tuple[str, ...]:
    """By the system's resolver. It blocks."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


def check_address(url: str, allowed: AllowedAddresses = NONE_ALLOWED, lookup: Lookup = look_up) -> CheckedAddress:
    """A URL or a host (with or without a port) that a model, or a server on the network, has named. It blocks.

    Never raises for what the text is.
    """
    host, fault = _host_of(url)
    if fault:
        return CheckedAddress(host, refused=fault)
    literal = _literal(host)
    if literal is not None:
        refused = "" if allowed.allows(literal) else _why_not(literal)
        return CheckedAddress(host, (str(literal),), refused and f"{refused}: {literal}")
    if not _NAME.fullmatch(host):
        return CheckedAddress(host, refused="not the name of a host")
    try:
        found = [_literal(each.partition("%")[0]) for each in lookup(host)]
    except (OSError, UnicodeError):
        return CheckedAddress(host, refused="a name that cannot be looked up")
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return CheckedAddress(host, refused="a name without an address")
    addresses = tuple(map(str, known))
    if allowed.allows_name(host):
        return CheckedAddress(host, addresses)
    for each in known:
        if not allowed.allows(each) and (refused := _why_not(each)):
            return CheckedAddress(host, addresses, f"{refused}: {host} leads to {each}")
    return CheckedAddress(host, addresses)


async def checked_address(
    url: str, allowed: AllowedAddresses = NONE_ALLOWED, lookup: Lookup = look_up, seconds: float = LOOKUP_SECONDS
) -> CheckedAddress:
    """`check_address` on a thread, for code on an event loop; a name that is not found in time is refused."""
    try:
        async with asyncio.timeout(seconds):
            return await asyncio.to_thread(check_address, url, allowed, lookup)
    except TimeoutError:
        return CheckedAddress(_host_of(url)[0], refused=f"a name that was not found within {seconds:g} s")


def _host_of(url: str) -> tuple[str, str]:
    """The host that a client would connect to, and what is wrong with the address."""
    if re.search(r"[\s\\\x00-\x1f\x7f]", url):
        return "", "an address with a blank, a backslash or a control character, which clients read differently"
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "", "not an address"
    if parts.scheme and parts.scheme.lower() not in SCHEMES:
        return host, f"an address of {parts.scheme}:, not of {', '.join(sorted(SCHEMES))}"
    if parts.username is not None or parts.password is not None:
        return host, "an address with a user name before its host"
    host = unicodedata.normalize("NFKC", host).lower().rstrip(".")
    if not host.isascii():
        try:
            host = host.encode("idna").decode()
        except UnicodeError:
            return "", "not the name of a host"
    return host, "" if host and "%" not in host else "not the name of a host"


def _literal(host: str) -> IpAddress | None:
    """The address that a host written in numbers is; None for a name."""
    if _NUMERIC.fullmatch(host):
        try:
            return ipaddress.IPv4Address(socket.inet_aton(host))
        except OSError:
            return ipaddress.IPv4Address(0)  # out of range: refused
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


def _why_not(address: IpAddress) -> str:
    """Why no model may have it connected to; "" for an address of the public network."""
    if isinstance(address, ipaddress.IPv6Address) and not address.is_loopback:
        for network, shift in _CARRY_IPV4:
            if address in network and (inner := _why_not(ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF))):
                return inner
        if any(address in network for network in _HIDING) or (int(address) >> 32) & 0xFCFFFFFF == _ISATAP:
            return "an address of a tunnel"
    kinds = (
        (address.is_loopback, "an address of this machine"),
        (address.is_unspecified, "an address of this machine"),
        (address.is_link_local, "a link-local address"),
        (address.is_multicast, "a multicast address"),
        (address.is_private, "a private address"),
        (address.is_reserved or not address.is_global or address in _RESERVED, "a reserved address"),
    )
    return next((why for is_so, why in kinds if is_so), "")
