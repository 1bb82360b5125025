"""When two addresses name one page."""

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_TRACKING = re.compile(
    r"(utm_\w+|gclid|dclid|fbclid|msclkid|yclid|srsltid|mc_cid|mc_eid)(=.*)?", re.I
)
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")
_TO_ESCAPE = re.compile(r"[^!-~]|[\"<>\\^`{|}]|%(?![0-9A-Fa-f]{2})")


def normalised_url(url: str) -> str:
    """One spelling of an ``http`` or ``https`` address; "" for anything else.

    As RFC 3986, section 6.2, and without what does not choose the page: fragment, user name,
    default port, parameters that track visitors. The result can be fetched, and is its own
    normal form.

    Example:
        >>> normalised_url("HTTP://Example.com:80/a/../%7Eb?utm_source=x&q=1#top")
        'http://example.com/~b?q=1'
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        host = (parts.hostname or "").rstrip(".")
        if parts.scheme not in _DEFAULT_PORTS or not host:
            return ""
        host = _ascii_host(host)
    except (ValueError, UnicodeError):
        return ""
    shown = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS[parts.scheme]:
        shown = f"{shown}:{port}"
    path = _without_dots(_escaped(parts.path)) or "/"
    fields = [f for f in parts.query.split("&") if f and not _TRACKING.fullmatch(f)]
    return urlunsplit(SplitResult(parts.scheme, shown, path, _escaped("&".join(fields)), ""))


def page_key(url: str) -> str:
    """The same for addresses that differ in scheme, ``www.`` or a last slash; "" for none.

    Example:
        >>> page_key("http://www.example.com/a/") == page_key("https://example.com/a")
        True
    """
    rest = normalised_url(url).partition("://")[2]
    address, question, query = rest.removeprefix("www.").partition("?")
    return address.rstrip("/") + question + query


def _ascii_host(host: str) -> str:
    if host.isascii():
        if re.search(r"[^\w.:%-]", host):
            raise ValueError("no host name")
        return host.lower()
    return host.encode("idna").decode("ascii").lower()


def _escaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        character = chr(int(match[1], 16))
        return character if character in _UNRESERVED else match[0].upper()

    quoted = _TO_ESCAPE.sub(
        lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode("utf-8", "replace")), text
    )
    return _ESCAPE.sub(plain, quoted)


def _without_dots(path: str) -> str:
    """The path without ``.`` and ``..`` (RFC 3986, section 5.2.4)."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments and segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)
