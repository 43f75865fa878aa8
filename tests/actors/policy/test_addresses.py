"""Which addresses a model may have connected to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard.actors.policy.addresses import AllowedAddresses, check_address, checked_address
from callboard.protocol.errors import UsageError

NAMES = {
    "good.example": ["93.184.216.34"],
    "six.example": ["2606:4700::1111"],
    "both.example": ["93.184.216.34", "10.0.0.1"],
    "localhost": ["127.0.0.1", "::1"],
    "local.example": ["::1"],
    "scoped.example": ["fe80::1%eth0"],
    "empty.example": [],
}


def lookup(host: str) -> list[str]:
    if host not in NAMES:
        raise socket.gaierror("no such name")
    return NAMES[host]


#: An address, and a word of why it is refused; "": it is not.
ADDRESSES = {
    "https://good.example/x?y=1": "",
    "good.example": "",
    "good.example:443": "",
    "HTTPS://GOOD.EXAMPLE./": "",
    "wss://good.example": "",
    "http://six.example": "",
    "http://8.8.8.8": "",
    "http://134744072/": "",
    "http://[2606:4700::1111]:80/": "",
    "http://127.0.0.1": "this machine",
    "http://127.1": "this machine",
    "http://2130706433/": "this machine",
    "http://0x7f000001": "this machine",
    "http://0x7f.0.0.1": "this machine",
    "http://0177.0.0.01": "this machine",
    "http://017700000001": "this machine",
    "http://0": "this machine",
    "http://0.0.0.0:80": "this machine",
    "http://[::]": "this machine",
    "http://[::1]:80/": "this machine",
    "http://[0:0:0:0:0:0:0:1]": "this machine",
    "http://[::ffff:127.0.0.1]": "this machine",
    "http://[::ffff:7f00:1]": "this machine",
    "http://[64:ff9b::7f00:1]": "this machine",
    "http://[2002:7f00:1::]": "this machine",
    "http://localhost": "this machine",
    "http://LocalHost.:8080": "this machine",
    "http://local.example": "this machine",
    "http://\uff11\uff12\uff17.0.0.1": "this machine",
    "http://127\u30020\u30020\u30021/": "this machine",
    "http://169.254.169.254/latest/meta-data/": "link-local",
    "http://[::ffff:a9fe:a9fe]/": "link-local",
    "http://0xa9fea9fe/": "link-local",
    "http://[fe80::1]/": "link-local",
    "http://scoped.example": "link-local",
    "http://10.1.2.3": "private",
    "http://172.16.0.1": "private",
    "http://192.168.1.1": "private",
    "http://both.example": "private",
    "http://[fc00::1]": "private",
    "http://[fd00:ec2::254]/": "private",
    "http://100.64.0.1": "reserved",
    "http://192.0.0.192/": "reserved|private",
    "http://198.18.0.1": "private",
    "http://240.0.0.1": "private|reserved",
    "http://255.255.255.255": "private|reserved",
    "http://224.0.0.1": "multicast",
    "http://[ff02::1]": "multicast",
    "http://[2001:0:4136:e378:8000:63bf:3fff:fdd2]": "tunnel|private",
    "http://999999999999": "this machine",
    "http://none.example": "cannot be looked up",
    "http://empty.example": "without an address",
    "http://good.example@127.0.0.1/": "user name",
    "http://user:word@good.example/": "user name",
    "http://good.example\\@127.0.0.1/": "backslash",
    "http://good.example /": "blank",
    "http://good.example\n.evil": "control",
    "http://good.example\0": "control",
    "http://[fe80::1%25eth0]/": "not the name",
    "http://good.example:99999": "not an address",
    "http://[::1": "not an address",
    "http://": "not the name",
    "": "not the name",
    "http://-a.example": "not the name",
    "http://a_%62.example": "not the name",
    "file:///etc/passwd": "file:",
    "ftp://good.example": "ftp:",
    "gopher://good.example:70/": "gopher:",
}


@pytest.mark.parametrize(("address", "why"), ADDRESSES.items(), ids=map(ascii, ADDRESSES))
def test_an_address_is_refused_for_where_it_leads(address: str, why: str) -> None:
    checked = check_address(address, lookup=lookup)
    assert bool(checked.refused) == bool(why)
    assert any(each in checked.refused for each in why.split("|"))
    if not why:
        assert checked.addresses, "to connect to, in place of the name"


@given(st.ip_addresses())
def test_no_address_of_a_special_network_passes_in_any_of_its_forms(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if isinstance(address, ipaddress.IPv4Address):
        number = int(address)
        octal = ".".join(f"0{int(part):o}" for part in str(address).split("."))
        forms = [str(address), str(number), hex(number), octal, f"[::ffff:{address}]", f"[64:ff9b::{address}]"]
    else:
        forms = [f"[{address}]", f"[{address.exploded}]"]
    refused = {bool(check_address(f"http://{form}/", lookup=lookup).refused) for form in forms}
    if not address.is_global or address.is_multicast:
        assert refused == {True}
    elif isinstance(address, ipaddress.IPv4Address) and not str(address).startswith("192.0.0."):
        assert {bool(check_address(form, lookup=lookup).refused) for form in forms[:4]} == {False}


def test_the_owner_may_allow_hosts_and_networks() -> None:
    allowed = AllowedAddresses(["localhost", "10.0.0.0/8", "*.internal", "fd00::/8"])
    names = {"a.internal": ["192.168.9.9"], "internal": ["192.168.9.9"], "a.internal.evil": ["192.168.9.9"], **NAMES}
    addresses = (
        """localhost 127.0.0.1 10.1.2.3 a.internal internal [fd00::1] 192.168.0.1 both.example a.internal.evil"""
    )
    refused = [
        each for each in addresses.split() if check_address(f"http://{each}", allowed, names.__getitem__).refused
    ]
    assert refused == ["127.0.0.1", "internal", "192.168.0.1", "a.internal.evil"]


@pytest.mark.parametrize("wrong", ["10.0.0.1/8", "http://x", "a b", "", "*", "*.*", "1.2.3.4.5/8", "0x7f.1"])
def test_what_is_neither_host_nor_network_is_refused_in_one_sentence(wrong: str) -> None:
    with pytest.raises(UsageError, match="neither a host nor a network; write localhost"):
        AllowedAddresses([wrong])


def test_an_address_is_judged_beside_the_loop_with_what_to_connect_to() -> None:
    good = asyncio.run(checked_address("http://good.example", lookup=lookup))
    assert (good.refused, good.addresses) == ("", tuple(lookup("good.example")))
    assert "link-local" in asyncio.run(checked_address("http://169.254.169.254", lookup=lookup)).refused


def test_a_name_server_that_does_not_answer_in_time_is_a_refusal() -> None:
    answers = threading.Event()

    def mute(host: str) -> tuple[str, ...]:
        answers.wait(60)
        return ("93.184.216.34",)

    async def judged() -> str:
        try:
            return (await checked_address("http://slow.example", lookup=mute, seconds=0.05)).refused
        finally:
            answers.set()

    assert asyncio.run(judged()) == "a name that was not found within 0.05 s"
