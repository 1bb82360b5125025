"""Pages of the web: what is read, and every way in which one is not."""

import gzip
import time
from types import SimpleNamespace

import httpx
import pytest
from tests.web_server import Reply, Web, page, redirect

from spaniel.config import LiveConfig
from spaniel.errors import ToolError
from spaniel.index.live import fetch, guard
from spaniel.index.live.fetch import Fetcher, Pace, Unreadable
from spaniel.index.live.pages import PageReader
from spaniel.index.remote import retry
from spaniel.index.remote.retry import Unanswered

ARTICLE = "".join(
    f"<p>Sentence {n} of a long article on wells and how they are dug by hand.</p>"
    for n in range(8)
)
HTML = (
    "<html><head><title>Deep wells</title><script>var hidden = 1</script></head><body>"
    f"<nav><a href='/'>Home</a></nav><article><h1>Deep wells</h1>{ARTICLE}</article>"
    "<footer>Imprint</footer></body></html>"
)


CONTEXT = httpx.create_ssl_context()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    # Reading the certificates of the system takes longer than a test.
    monkeypatch.setattr("httpx._transports.default.create_ssl_context", lambda **_: CONTEXT)
    monkeypatch.setattr(retry, "FIRST_PAUSE_S", 0.001)


@pytest.fixture
def web():
    server = Web()
    yield server
    server.close()


@pytest.fixture
def reader():
    made = []

    def make(**settings):
        plain = {"timeout_s": 5.0, "min_delay_s": 0.0, "allow_hosts": ("127.0.0.1",)}
        made.append(PageReader(LiveConfig(provider="serper", **(plain | settings))))
        return made[-1]

    yield make
    for one in made:
        one.close()


def why(reader, url):
    with pytest.raises(Unreadable) as caught:
        reader.read(url)
    return str(caught.value), caught.value.lasting


def test_a_page_is_its_title_and_its_article(web, reader):
    web.routes["/a"] = page(HTML)
    found = reader().read(f"{web.url}/a")
    assert found.title == "Deep wells"
    assert "Sentence 7 of a long article" in found.text
    assert not any(word in found.text for word in ("hidden", "Imprint", "<p>"))


def test_a_page_too_small_for_an_article_is_read_all_the_same(web, reader):
    web.routes["/a"] = page("<title>T</title><div>Open <b>daily</b></div>")
    assert reader().read(f"{web.url}/a").text.split() == ["Open", "daily"]


@pytest.mark.parametrize("start", ["", "<html>", "<!doctype html><html lang=en><meta name=x>"])
def test_tags_that_html_lets_be_left_out_are_not_needed(web, reader, start):
    web.routes["/a"] = page(f"{start}<title>T</title><article><p>Open daily</p></article>")
    found = reader().read(f"{web.url}/a")
    assert (found.title, found.text) == ("T", "Open daily")


def test_plain_text_is_read_as_it_is(web, reader):
    web.routes["/a"] = page("one\n  <two>\n", kind="text/plain")
    assert reader().read(f"{web.url}/a").text == "one\n  <two>"


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("Käse".encode("cp1252"), "text/plain; charset=iso-8859-1"),
        ("Käse".encode("cp1252"), "text/plain"),
        ("Käse".encode(), "text/plain; charset=no-such"),
        ("\ufeffKäse".encode(), "text/plain"),
        ('<meta charset="shift_jis">日本'.encode("shift_jis"), "text/html"),
    ],
)
def test_the_encoding_is_the_headers_or_the_pages_or_found_out(web, reader, raw, kind):
    web.routes["/a"] = page(raw, kind=kind)
    assert reader().read(f"{web.url}/a").text in ("Käse", "日本")


def test_a_compressed_page_is_read_and_a_bomb_is_not(web, reader):
    zipped = {"content-type": "text/html", "content-encoding": "gzip"}
    web.routes["/a"] = Reply(gzip.compress(HTML.encode()), headers=zipped)
    web.routes["/bomb"] = Reply(gzip.compress(b" " * 5_000_000), headers=zipped)
    web.routes["/broken"] = Reply(b"no gzip", headers=zipped)
    assert reader().read(f"{web.url}/a").title == "Deep wells"
    assert why(reader(), f"{web.url}/bomb") == ("it is longer than 2,000,000 bytes", True)
    assert "compression is broken" in why(reader(), f"{web.url}/broken")[0]


@pytest.mark.parametrize(
    ("reply", "reason", "lasting"),
    [
        (Reply(status=404), "its server says 404", True),
        (Reply(status=403), "its server says 403", True),
        (Reply(status=408), "its server says 408", False),
        (Reply(status=501), "its server says 501", False),
        (Reply(status=304), "its server says 304", True),
        (page(b"%PDF-1.7 ...", kind="application/pdf"), "it is a PDF file", True),
        (page(b"%PDF-1.7 ...", kind="text/html"), "it is a PDF file", True),
        (page(b"\x89PNG", kind="image/png"), "it is of type image/png", True),
        (page("{}", kind="application/json"), "it is of type application/json", True),
        (page("<html><script>app()</script></html>"), "it holds no text", True),
        (page(""), "it holds no text", True),
        (page("x" * 3000), "it is longer than 2,000 bytes", True),
        (redirect("ftp://a.org/x"), "it redirects to what is no web address", True),
        (redirect("http://[::1/"), "it redirects to what is no web address", True),
        (redirect("/a"), "its redirects lead in a circle", True),
    ],
)
def test_an_unreadable_page_says_why(web, reader, reply, reason, lasting):
    web.routes["/a"] = reply
    assert why(reader(max_page_bytes=2000), f"{web.url}/a") == (reason, lasting)


def test_an_endless_page_is_left_when_it_is_too_long(web, reader):
    web.routes["/a"] = page("x" * 500_000, length=10**9)
    assert "longer than 2,000 bytes" in why(reader(max_page_bytes=2000), f"{web.url}/a")[0]
    web.routes["/b"] = Reply("x" * 50_000, drip_s=0.001, headers={"content-type": "text/html"})
    assert "longer than 2,000 bytes" in why(reader(max_page_bytes=2000), f"{web.url}/b")[0]


def test_a_server_that_drips_is_left_in_time(web, reader):
    web.routes["/a"] = page("x" * 100_000, drip_s=0.1)
    started = time.monotonic()
    reason, lasting = why(reader(timeout_s=0.5), f"{web.url}/a")
    assert (reason, lasting) == ("it was not complete after 0.5 s", False)
    assert time.monotonic() - started < 5


def test_a_server_that_does_not_answer_in_time_is_unanswered(web, reader):
    web.routes["/a"] = page(HTML, wait_s=1.0)
    with pytest.raises(Unanswered, match="ReadTimeout") as caught:
        reader(timeout_s=0.1).read(f"{web.url}/a")
    assert not caught.value.reached
    assert isinstance(caught.value, ToolError)


def test_a_server_that_fails_for_a_moment_is_asked_again(web, reader):
    web.routes["/a"] = [Reply(status=503), page(HTML)]
    assert reader().read(f"{web.url}/a").title == "Deep wells"
    web.routes["/b"] = Reply(status=500)
    with pytest.raises(Unanswered, match="status 500") as caught:
        reader().read(f"{web.url}/b")
    assert caught.value.reached
    assert len(web.asked("/b")) == 1 + fetch.PAGE_RETRIES


# --- redirects and the guard ------------------------------------------------------------------


def test_redirects_are_followed_each_behind_the_guard_and_the_rules(web, reader):
    web.routes["/a"] = redirect("/b?x=1", 301)
    web.routes["/b"] = redirect(f"{web.url}/c#part", 308)
    web.routes["/c"] = page(HTML)
    assert reader().read(f"{web.url}/a").title == "Deep wells"
    web.routes["/robots.txt"] = page("User-agent: *\nDisallow: /c", kind="text/plain")
    assert "does not let robots" in why(reader(), f"{web.url}/a")[0]


def test_too_many_redirects_are_left(web, reader):
    for n in range(12):
        web.routes[f"/{n}"] = redirect(f"/{n + 1}")
    assert why(reader(), f"{web.url}/0")[0] == "it is behind more than 10 redirects"


@pytest.mark.parametrize(
    "target", ["http://10.0.0.1/", "http://169.254.169.254/latest/", "http://[::ffff:127.0.0.1]/"]
)
def test_a_redirect_to_a_private_address_is_refused(web, reader, target):
    web.routes["/a"] = redirect(target)
    reason = ("its address is not on the public internet", True)
    assert why(reader(), f"{web.url}/a") == reason


def test_this_machine_is_refused_unless_it_is_allowed(web, reader):
    web.routes["/a"] = page(HTML)
    assert "not on the public internet" in why(reader(allow_hosts=()), f"{web.url}/a")[0]
    assert web.requests == []


def test_a_name_that_changes_its_address_after_the_check_gains_nothing(web, reader, monkeypatch):
    web.routes["/a"] = page(HTML)
    original, asked = guard.socket.getaddrinfo, []

    def getaddrinfo(host, *args, **more):
        if host != "rebind.test":
            return original(host, *args, **more)
        asked.append(host)
        address = "127.0.0.1" if len(asked) <= 2 else "10.255.255.1"
        return [(2, 1, 6, "", (address, web.port))]

    monkeypatch.setattr(guard.socket, "getaddrinfo", getaddrinfo)
    found = reader(allow_hosts=("rebind.test",)).read(f"http://rebind.test:{web.port}/a")
    assert found.title == "Deep wells"
    assert len(asked) == 2  # for robots.txt and for the page: once each
    assert web.asked("/a")[0][1]["host"] == f"rebind.test:{web.port}"


def fetcher_over(handler, monkeypatch, addresses):
    rows = [(2, 1, 6, "", (address, 443)) for address in addresses]
    monkeypatch.setattr(guard.socket, "getaddrinfo", lambda *_, **__: rows)
    made = Fetcher(LiveConfig(provider="serper", min_delay_s=0), httpx)
    made.close()
    made._transport = httpx.MockTransport(handler)
    return made


def test_the_connection_goes_to_the_address_and_the_certificate_is_the_names(monkeypatch):
    seen = []

    def handler(request):
        seen.append(request)
        return httpx.Response(200, text="x")

    made = fetcher_over(handler, monkeypatch, ["1.1.1.1"])
    assert made.get("https://a.org/x").content == b"x"
    made.close()
    assert seen[0].url.host == "1.1.1.1"
    assert seen[0].headers["host"] == "a.org"
    assert seen[0].extensions["sni_hostname"] == "a.org"


def test_the_next_address_of_a_name_is_tried_when_one_does_not_answer(monkeypatch):
    seen = []

    def handler(request):
        seen.append(request.url.host)
        if request.url.host == "1.1.1.1":
            raise httpx.ConnectError("no route")
        return httpx.Response(200, text="x")

    made = fetcher_over(handler, monkeypatch, ["1.1.1.1", "1.0.0.1"])
    assert made.get("https://a.org/x").status_code == 200
    made.close()
    assert seen == ["1.1.1.1", "1.0.0.1"]


# --- robots.txt and pace ----------------------------------------------------------------------

RULES = """\
User-agent: *
Disallow: /

User-agent: Spaniel
Disallow: /private/
Allow: /private/open
Disallow: /*.cgi$
"""


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/", True),
        ("/private/x", False),
        ("/private/open", True),
        ("/a.cgi", False),
        ("/a.cgi?x", True),
    ],
)
def test_the_rules_for_our_name_are_kept(web, reader, path, allowed):
    web.routes["/robots.txt"] = page(RULES, kind="text/plain")
    web.routes[path.partition("?")[0]] = page(HTML)
    one = reader(user_agent="spaniel/1.0 (+https://example.org)")
    if allowed:
        assert one.read(web.url + path).title == "Deep wells"
    else:
        assert why(one, web.url + path) == ("its host does not let robots read it", True)
    asked = web.asked("/robots.txt")[0]
    assert asked[1]["user-agent"] == "spaniel/1.0 (+https://example.org)"


def test_rules_are_fetched_once(web, reader):
    web.routes["/a"] = web.routes["/b"] = page(HTML)
    one = reader()
    one.read(f"{web.url}/a")
    one.read(f"{web.url}/b")
    assert len(web.asked("/robots.txt")) == 1


@pytest.mark.parametrize("reply", [Reply(status=404), Reply(status=403), redirect("/robots.txt")])
def test_a_host_without_rules_lets_everything_be_read(web, reader, reply):
    web.routes |= {"/robots.txt": reply, "/a": page(HTML)}
    assert reader().read(f"{web.url}/a").title == "Deep wells"


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_host_that_cannot_say_its_rules_is_left_alone(web, reader, status):
    web.routes |= {"/robots.txt": Reply(status=status), "/a": page(HTML)}
    reason = ("its host could not say what robots may read", False)
    assert why(reader(), f"{web.url}/a") == reason
    assert web.asked("/a") == []


def test_a_host_whose_rules_cannot_be_reached_is_unanswered(web, reader):
    web.routes |= {"/robots.txt": page("", wait_s=1.0), "/a": page(HTML)}
    with pytest.raises(Unanswered):
        reader(timeout_s=0.1).read(f"{web.url}/a")
    assert web.asked("/a") == []


def test_rules_behind_a_redirect_hold(web, reader):
    web.routes |= {"/robots.txt": redirect("/rules"), "/a": page(HTML)}
    web.routes["/rules"] = page("User-agent: *\nDisallow: /a", kind="text/plain")
    assert "does not let robots" in why(reader(), f"{web.url}/a")[0]


@pytest.fixture
def clock(monkeypatch):
    """Pauses that were made; time passes by them alone."""
    pauses = []
    monkeypatch.setattr(
        fetch, "time", SimpleNamespace(monotonic=lambda: sum(pauses), sleep=pauses.append)
    )
    return pauses


def test_a_host_is_asked_no_faster_than_it_wants(web, reader, clock):
    web.routes |= {"/a": page(HTML), "/b": page(HTML)}
    web.routes["/robots.txt"] = page("User-agent: *\nCrawl-delay: 7", kind="text/plain")
    one = reader(min_delay_s=2.0)
    one.read(f"{web.url}/a")
    one.read(f"{web.url}/b")
    assert clock == [7.0, 7.0]
    web.routes["/robots.txt"] = Reply(status=404)
    two = reader(min_delay_s=2.0)
    two.read(f"{web.url}/a")
    assert clock == [7.0, 7.0, 2.0]


def test_a_host_that_wants_very_long_pauses_is_not_read(web, reader):
    web.routes["/robots.txt"] = page("User-agent: *\nCrawl-delay: 3600", kind="text/plain")
    web.routes["/a"] = page(HTML)
    assert why(reader(), f"{web.url}/a")[0] == "its host wants 3600 s between two requests"


def test_callers_take_turns_at_one_host_and_not_at_others(monkeypatch):
    pauses = []
    standing = SimpleNamespace(monotonic=lambda: 100.0, sleep=pauses.append)
    monkeypatch.setattr(fetch, "time", standing)
    pace = Pace(2.0)
    for host in ("a", "a", "b", "a", "a"):
        pace.wait(host)
    assert pauses == [2.0, 4.0, 6.0]


def test_a_host_that_was_left_alone_is_asked_at_once(clock):
    pace = Pace(2.0)
    pace.wait("a")
    clock.append(5.0)
    pace.wait("a")
    assert clock == [5.0]
