"""Which machines a web page may lie on: those of the public internet and no other.

A search result, or a page that redirects, can name any address: the router, a service on the
loopback device, a cloud's metadata server. So a host is resolved here, each of its addresses is
judged, and the connection goes to an address that was judged (``fetch.py``): a name that resolves
to something else a moment later changes nothing.
"""

import socket
from collections.abc import Collection
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

_NAT64 = IPv6Network("64:ff9b::/96")
# Protocol assignments, documentation and segment routing, which some releases of Python call
# global.
_SPECIAL = tuple(ip_network(n) for n in ("192.0.0.0/24", "3fff::/20", "5f00::/16"))


class Refused(Exception):
    """The host is not on the public internet. The message says so in half a sentence."""


class Guard:
    """Resolves hosts and refuses those that are not public.

    Args:
        allow_hosts: names or addresses, as they stand in a URL, that are let pass anyway.
    """

    def __init__(self, allow_hosts: Collection[str] = ()) -> None:
        self._allowed = {host.lower().strip("[]") for host in allow_hosts}

    def addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host, in the resolver's order.

        Raises:
            Refused: one of them is not public: names with mixed addresses are how a resolver
                is tricked.
            OSError: the name cannot be resolved.
        """
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError as error:  # a label that no resolver takes
            raise OSError(f"{host!r} is no host name: {error}") from None
        found = list(dict.fromkeys(str(row[4][0]) for row in rows))
        if host.lower() not in self._allowed:
            for address in found:
                if not is_public(address):
                    raise Refused(f"{host} is {address}, which is not on the public internet")
        return found


def is_public(address: str) -> bool:
    """Whether an IP address is that of one machine on the public internet.

    Private, loopback, link-local, multicast, reserved, unspecified and documentation addresses
    are not, nor are IPv6 forms that carry such an IPv4 address (mapped, 6to4, Teredo, NAT64).
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        carried = _carried(ip)
        if carried is not None:
            return all(_is_public(inner) for inner in carried)
    return _is_public(ip)


def _carried(ip: IPv6Address) -> tuple[IPv4Address, ...] | None:
    if ip.ipv4_mapped is not None:
        return (ip.ipv4_mapped,)
    if ip.sixtofour is not None:
        return (ip.sixtofour,)
    if ip.teredo is not None:
        return ip.teredo
    if ip in _NAT64:
        return (IPv4Address(int(ip) & 0xFFFFFFFF),)
    return None


def _is_public(ip: IPv4Address | IPv6Address) -> bool:
    return ip.is_global and not (
        ip.is_private
        or ip.is_loopback
        or ip.is_link_local
        or ip.is_multicast
        or ip.is_reserved
        or ip.is_unspecified
        or (isinstance(ip, IPv6Address) and ip.is_site_local)
        or any(ip in network for network in _SPECIAL)
    )
