"""When two addresses name one page, and which machines a page may lie on."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spaniel.index.live import guard
from spaniel.index.live.guard import Guard, Refused, is_public
from spaniel.index.live.urls import normalised_url, page_key


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://a.org", "https://a.org/"),
        ("HTTPS://A.Org:443/X?b=1&a=2#f", "https://a.org/X?b=1&a=2"),
        ("http://a.org:8080/", "http://a.org:8080/"),
        ("https://a.org:80/", "https://a.org:80/"),
        ("https://me:pw@a.org./x", "https://a.org/x"),
        ("http://a.org/a/./b/../c/", "http://a.org/a/c/"),
        ("http://a.org/../..", "http://a.org/"),
        ("http://a.org/%7euser/%2f%C3%A9", "http://a.org/~user/%2F%C3%A9"),
        ("http://a.org/é ?q=ä", "http://a.org/%C3%A9%20?q=%C3%A4"),
        ("http://a.org/100%", "http://a.org/100%25"),
        ("http://a.org/x?utm_source=n&id=3&gclid=z&fbclid", "http://a.org/x?id=3"),
        ("http://a.org/x?", "http://a.org/x"),
        ("http://bücher.example/x", "http://xn--bcher-kva.example/x"),
        ("http://[2001:DB8::1]:80/", "http://[2001:db8::1]/"),
        ("  https://a.org/x\n", "https://a.org/x"),
    ],
)
def test_an_address_has_one_spelling(url, normal):
    assert normalised_url(url) == normal


@pytest.mark.parametrize(
    "url",
    [
        *("", "a.org/x", "ftp://a.org/", "file:///etc/passwd", "javascript:alert(1)", "http://"),
        *("http:///x", "http://a.org:99999/", "http://a.org:x/", "http://a b/", "http://[::1/"),
        *("http://" + "ü" * 70 + "/", "mailto:a@b.org"),
    ],
)
def test_what_is_no_web_address_has_none(url):
    assert normalised_url(url) == ""
    assert page_key(url) == ""


@given(st.one_of(st.text(), st.text().map(lambda t: f"http://a.org/{t}")))
def test_the_normal_form_is_its_own(text):
    once = normalised_url(text)
    assert normalised_url(once) == once
    assert once.isascii()
    assert not set(once) & set(" \n\t#")


def test_scheme_www_and_last_slash_do_not_make_another_page():
    one = {
        page_key(f"{s}://{w}a.org/x{e}")
        for s in ("http", "https")
        for w in ("", "www.")
        for e in ("", "/")
    }
    assert one == {"a.org/x"}
    assert page_key("https://a.org") == page_key("http://www.a.org/") == "a.org"
    assert page_key("https://a.org/x/?q=1") == "a.org/x?q=1"
    assert page_key("https://a.org/X") != page_key("https://a.org/x")


# --- the guard --------------------------------------------------------------------------------

PUBLIC = ["93.184.215.14", "1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
NOT_PUBLIC = [
    *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
    *("0.0.0.0", "255.255.255.255", "224.0.0.1", "239.1.1.1", "100.64.0.1", "192.0.2.1"),
    *("198.18.0.1", "240.0.0.1", "192.0.0.8"),
    *("::1", "::", "fe80::1", "fe80::1%lo", "fc00::1", "fd12::1", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "fec0::1"),
    *("2002:7f00:1::", "2002:a00:1::", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "::7f00:1"),
    *("2001:0:7f00:1::", "no address", ""),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_passes(address):
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_does_not(address):
    assert not is_public(address)


@given(st.ip_addresses(v=4, network="10.0.0.0/8"))
def test_an_ipv4_address_hides_in_no_ipv6_form(ip):
    number = int(ip)
    assert not is_public(f"::ffff:{ip}")
    assert not is_public(f"64:ff9b::{number >> 16:x}:{number & 0xFFFF:x}")
    assert not is_public(f"2002:{number >> 16:x}:{number & 0xFFFF:x}::1")


def resolver(monkeypatch, **names):
    def getaddrinfo(host, port, **_):
        return [(2, 1, 6, "", (address, port)) for address in names[host.replace(".", "_")]]

    monkeypatch.setattr(guard.socket, "getaddrinfo", getaddrinfo)


def test_a_name_is_judged_by_all_its_addresses(monkeypatch):
    resolver(monkeypatch, good_org=["1.1.1.1", "1.0.0.1"], mixed_org=["1.1.1.1", "10.0.0.1"])
    assert Guard().addresses("good.org", 80) == ["1.1.1.1", "1.0.0.1"]
    with pytest.raises(Refused, match=r"mixed.org is 10.0.0.1, which is not on the public"):
        Guard().addresses("mixed.org", 80)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433", "0x7f000001", "localhost"])
def test_no_spelling_of_this_machine_passes(host):
    with pytest.raises((Refused, socket.gaierror)):
        Guard().addresses(host, 80)


def test_an_exception_is_for_the_host_as_it_is_named(monkeypatch):
    resolver(monkeypatch, wiki_corp=["10.0.0.7"], other_corp=["10.0.0.7"])
    allowed = Guard(["Wiki.corp", "10.0.0.9"])
    assert allowed.addresses("wiki.corp", 443) == ["10.0.0.7"]
    with pytest.raises(Refused):
        allowed.addresses("other.corp", 443)
