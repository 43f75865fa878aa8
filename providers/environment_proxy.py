"""The proxies that the environment names: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, and NO_PROXY for hosts without one."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from callboard.protocol.errors import UsageError


def environment_proxy() -> Callable[[str], str] | str:
    """From an address that is asked to the proxy for it ("": none), by the variables as they are now; "" where none is
    set.

    This machine is asked without one, as Go's net/http does it (ProxyFromEnvironment): no proxy can reach what listens
    here only. A proxy that is no HTTP proxy (SOCKS) is a UsageError once an address would be asked through it.
    """
    proxies = getproxies_environment()
    if not proxies.keys() - {"no"}:
        return ""

    def proxy_for(url: str) -> str:
        parts = urlsplit(url)
        host = parts.hostname or ""
        found = proxies.get(parts.scheme) or proxies.get("all") or ""
        if not found or _is_here(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
            return ""
        address = found if "://" in found else f"http://{found}"
        if not address.startswith(("http://", "https://")):
            raise UsageError(
                f"the environment names a proxy for {host} that is no HTTP proxy ({urlsplit(address).scheme}); set "
                'proxy="" to do without one, or name an HTTP proxy'
            )
        return address

    return proxy_for


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
