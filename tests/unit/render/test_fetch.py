"""Fetching pictures: which hosts, which addresses, how much, how long."""

import http.server
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.unit.render.helpers import chat, data_url, encoded, image_part, noise, png, settings, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.base import parse
from triton_renderer.protocol.stages import RenderJob
from triton_renderer.render import Renderer
from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.fetch import Fetcher, IPAddress, is_public
from triton_renderer.settings import SettingsError

PICTURE = png()


class Server:
    """An HTTP server on the loopback interface that notes each request."""

    def __init__(self) -> None:
        self.hits: list[tuple[str, str | None]] = []
        self.answer: Callable[[http.server.BaseHTTPRequestHandler], None] = lambda handler: self.send(handler, PICTURE)
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.hits.append((self.path, self.headers.get("Host")))
                server.answer(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that leave are the point
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()

    @staticmethod
    def send(handler: http.server.BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def redirect_to(self, url: str) -> None:
        self.answer = lambda handler: self.send(handler, b"", 302, Location=url)

    def url(self, path: str = "/x.png", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def inside() -> Iterator[Server]:
    """What must not be reached."""
    server = Server()
    yield server
    server.close()
    assert server.hits == []


def everywhere(address: IPAddress) -> bool:
    return True


def fetcher(*hosts: str, may_dial: Callable[[IPAddress], bool] = everywhere, max_bytes: int = 10**6) -> "LimitedFetcher":
    return LimitedFetcher(Fetcher(hosts, may_dial), max_bytes)


@dataclass(frozen=True)
class LimitedFetcher:
    """A fetcher with one limit for all."""

    fetcher: Fetcher
    max_bytes: int

    def fetch(self, url: str, deadline: float) -> bytes:
        return self.fetcher.fetch(url, deadline, self.max_bytes)


def soon(seconds: float = 10) -> float:
    return time.monotonic() + seconds


def names(monkeypatch: pytest.MonkeyPatch, table: dict[str, list[list[str]]]) -> list[str]:
    """Host names for the test: each resolution gives the next list of addresses. Returns the names that were asked for."""
    asked: list[str] = []

    def getaddrinfo(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        asked.append(name)
        if name not in table:
            raise socket.gaierror(-2, "Name or service not known")
        addresses = table[name].pop(0) if len(table[name]) > 1 else table[name][0]
        return [
            (socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
        ]

    real = socket.getaddrinfo

    def patched(host: Any, *args: Any, **kwargs: Any) -> list[Any]:
        try:
            ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host)
        except ValueError:
            return getaddrinfo(host, *args, **kwargs)
        return list(real(host, *args, **kwargs))

    monkeypatch.setattr(socket, "getaddrinfo", patched)
    return asked


# Which hosts


def test_an_allowed_host_is_fetched_from(server: Server) -> None:
    assert fetcher("127.0.0.1").fetch(server.url("/a%20b/ü.png?x=1&y=/#frag"), soon()) == PICTURE
    assert server.hits == [("/a%20b/%C3%BC.png?x=1&y=/", f"127.0.0.1:{server.port}")]


def test_without_allowed_hosts_nothing_is_fetched(renderer: Renderer, inside: Server) -> None:
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(InvalidRequest, match="does not fetch media from") as caught:
            chat(renderer, user({"type": "image_url", "image_url": {"url": inside.url(host=host)}}))
        assert caught.value.param == "messages.0.content.0"


def test_the_strict_policy_refuses_an_allowed_host_with_an_inner_address(inside: Server) -> None:
    renderer = Renderer.load(settings(allowed_media_hosts="localhost,127.0.0.1"))
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(InvalidRequest, match="address that this server does not fetch from"):
            chat(renderer, user({"type": "image_url", "image_url": {"url": inside.url(host=host)}}))


@pytest.fixture(scope="module")
def fetching(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    """Fetches from this machine, and reads the files of tests."""
    allowed = {"allowed_media_hosts": "127.0.0.1", "allowed_local_media_path": str(tmp_path_factory.getbasetemp())}
    return Renderer.load(settings(**allowed), may_dial=everywhere)


def test_a_fetched_picture_is_rendered_like_an_attached_one(renderer: Renderer, fetching: Renderer, server: Server) -> None:
    fetched = chat(fetching, user({"type": "image_url", "image_url": {"url": server.url()}}))
    assert fetched.items == chat(renderer, user(image_part(PICTURE))).items


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "/etc/passwd", "etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/", "http:///x", "http://",
        "", "http://127.0.0.1:99999/", "http://127.0.0.1:x/", "http://[::1", "javascript:alert(1)", "http://..../",
        "http://user:word@127.0.0.1/", "http://127.0.0.1@example.com/", "http://example.com#@127.0.0.1/",
        "http://example.com\\@127.0.0.1/", "http://127.0.0.1.example.com/", "http://2130706433/", "http://0x7f.1/",
        "http://[::ffff:127.0.0.1]/", "http://\ud800.com/",
    ],
)  # fmt: skip
def test_other_urls_are_refused_without_a_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = names(monkeypatch, {})
    with pytest.raises(BadMedia):
        fetcher("127.0.0.1").fetch(url, soon(2))
    assert asked == []


def test_hosts_are_compared_whatever_their_spelling(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    names(monkeypatch, {"pictures.test": [["127.0.0.1"]], "xn--bcher-kva.test": [["127.0.0.1"]]})
    for host in ("PICTURES.test", "pictures.test.", "pictures.test"):
        assert fetcher("Pictures.Test").fetch(server.url(host=host), soon()) == PICTURE
    assert fetcher("bücher.test").fetch(server.url(host="BÜCHER.test"), soon()) == PICTURE


def test_a_setting_that_is_no_host_name_is_refused_at_load() -> None:
    with pytest.raises(SettingsError, match="ALLOWED_MEDIA_HOSTS"):
        fetcher("bü..cher")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda handler: Server.send(handler, b"", 404), "127.0.0.1 answered 404 instead of a file"),
        (lambda handler: handler.connection.close(), "the file could not be fetched from 127.0.0.1"),
        (lambda handler: Server.send(handler, b"<html>"), "not a picture"),
        (lambda handler: Server.send(handler, PICTURE[:-128]), "cut off or damaged"),
    ],
    ids=["404", "hangs up", "no picture", "cut off"],
)
def test_what_cannot_be_fetched_is_a_bad_request_about_its_part(
    fetching: Renderer, server: Server, answer: Callable[[http.server.BaseHTTPRequestHandler], None], said: str
) -> None:
    server.answer = answer
    with pytest.raises(InvalidRequest) as caught:
        chat(fetching, user(image_part(), {"type": "image_url", "image_url": {"url": server.url()}}))
    assert (caught.value.status, caught.value.param) == (400, "messages.0.content.1")
    assert caught.value.message.startswith("messages.0.content.1: ")
    assert said in caught.value.message
    assert "Traceback" not in caught.value.message


TURNED = {5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE}
"""How a picture is stored that shows upright with this orientation."""


@pytest.mark.parametrize("orientation", TURNED)
def test_a_turned_picture_is_upright_whichever_way_it_comes(
    fetching: Renderer, server: Server, tmp_path: Path, orientation: int
) -> None:
    upright = noise(64, 160)
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = encoded(upright.transpose(TURNED[orientation]), exif=exif)
    server.answer = lambda handler: server.send(handler, turned)
    (tmp_path / "x.png").write_bytes(turned)
    at_hand, fetched, local = data_url(turned), server.url(), (tmp_path / "x.png").as_uri()
    source = {"type": "base64", "media_type": "image/png", "data": at_hand.partition(",")[2]}
    ways: list[tuple[str, dict[str, Any]]] = [
        *(("chat", {"type": "image_url", "image_url": {"url": url}}) for url in (at_hand, fetched, local, "attached:0")),
        *(("responses", {"type": "input_image", "image_url": url}) for url in (at_hand, fetched, local)),
        ("messages", {"type": "image", "source": source}),
        *(("messages", {"type": "image", "source": {"type": "url", "url": url}}) for url in (fetched, local)),
    ]
    expected = chat(fetching, user(image_part(encoded(upright))))
    for kind, part in ways:
        asked = {"responses": "input"}.get(kind, "messages")
        body = {"model": "shapes-vl", "max_tokens": 5, asked: [user(part)]}
        job = parse(RenderJob, {"kind": kind, "id": "internal", "body": body, "for_generate": True})
        rendered = fetching.render(job, [memoryview(turned)])
        assert rendered.token_ids.tolist() == expected.token_ids.tolist(), (kind, part)
        assert rendered.items == expected.items
        assert rendered.context.features[0].mm_hash == expected.context.features[0].mm_hash


# Which addresses


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
        "239.255.255.250", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1", "::1", "::", "fe80::1", "fc00::1", "fd12::1",
        "ff02::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1", "2002:7f00:1::",
        "2001:db8::1", "::127.0.0.1", "64:ff9b:1::7f00:1", "100::1", "2001::1", "192.88.99.1", "192.0.0.8", "3fff::1", "fe80::1%eth0",
    ],
)  # fmt: skip
def test_inner_addresses_are_not_public(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_the_address_that_was_checked_is_the_one_that_is_dialled(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    asked = names(monkeypatch, {"pictures.test": [["127.0.0.1"], ["127.0.0.2"]]})
    checked: list[str] = []

    def may_dial(address: IPAddress) -> bool:
        checked.append(str(address))
        return True

    url = server.url(host="pictures.test")
    assert fetcher("pictures.test", may_dial=may_dial).fetch(url, soon()) == PICTURE
    assert asked == ["pictures.test"]
    assert checked == ["127.0.0.1"]
    assert server.hits == [("/x.png", f"pictures.test:{server.port}")]


def test_one_inner_address_among_others_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch, inside: Server) -> None:
    names(monkeypatch, {"pictures.test": [["8.8.8.8", "127.0.0.1"]]})
    with pytest.raises(BadMedia, match="has an address"):
        fetcher("pictures.test", may_dial=is_public).fetch(inside.url(host="pictures.test"), soon())


def test_the_next_address_is_tried_where_one_does_not_answer(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    names(monkeypatch, {"pictures.test": [["127.0.0.9", "127.0.0.1"]]})
    assert fetcher("pictures.test").fetch(server.url(host="pictures.test"), soon()) == PICTURE


def test_an_unknown_host_is_the_clients_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {})
    with pytest.raises(BadMedia, match=r"host nowhere\.test is not known"):
        fetcher("nowhere.test").fetch("http://nowhere.test/x", soon())


def test_tls_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {"pictures.test": [["127.0.0.1"]]})
    hello = b""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            nonlocal hello
            connection, _ = listener.accept()
            with connection:
                hello = connection.recv(4096)

        thread = threading.Thread(target=accept)
        thread.start()
        with pytest.raises(BadMedia, match="could not be fetched"):
            fetcher("pictures.test").fetch(f"https://pictures.test:{listener.getsockname()[1]}/x", soon(5))
        thread.join()
    assert b"pictures.test" in hello  # the server name of the TLS handshake, sent in clear


def test_certificates_are_checked() -> None:
    context = fetcher("pictures.test").fetcher._ssl
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED


# Redirects


def test_a_redirect_to_an_allowed_host_is_followed(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    names(monkeypatch, {"pictures.test": [["127.0.0.1"]]})

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        if handler.path == "/x.png":
            server.send(handler, b"", 307, location="/y.png")
        else:
            server.send(handler, PICTURE)

    server.answer = answer
    assert fetcher("pictures.test").fetch(server.url(host="pictures.test"), soon()) == PICTURE
    assert [path for path, _ in server.hits] == ["/x.png", "/y.png"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_to_a_host_that_is_not_allowed_is_refused(
    status: int, monkeypatch: pytest.MonkeyPatch, server: Server, inside: Server
) -> None:
    names(monkeypatch, {"pictures.test": [["127.0.0.1"]]})
    server.answer = lambda handler: server.send(handler, b"", status, Location=inside.url())
    with pytest.raises(BadMedia, match="does not fetch media from"):
        fetcher("pictures.test").fetch(server.url(host="pictures.test"), soon())
    assert len(server.hits) == 1


def test_a_redirect_to_an_allowed_name_with_an_inner_address_is_refused(
    monkeypatch: pytest.MonkeyPatch, server: Server, inside: Server
) -> None:
    names(monkeypatch, {"a.test": [["127.0.0.1"]], "b.test": [["127.0.0.5"]]})
    server.redirect_to(inside.url(host="b.test"))
    with pytest.raises(BadMedia, match="has an address"):
        fetcher("a.test", "b.test", may_dial=lambda address: str(address) == "127.0.0.1").fetch(
            server.url(host="a.test"), soon()
        )


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/", "//", "http://[", "data:image/png;base64,AAAA"])
def test_a_redirect_to_something_else_is_refused(server: Server, location: str) -> None:
    server.redirect_to(location)
    with pytest.raises(BadMedia):
        fetcher("127.0.0.1").fetch(server.url(), soon())


def test_redirects_end(server: Server) -> None:
    server.redirect_to("/again.png")
    with pytest.raises(BadMedia, match="more than 5 redirects"):
        fetcher("127.0.0.1").fetch(server.url(), soon())
    assert len(server.hits) == 6


# How much, how long


@pytest.mark.parametrize("status", [204, 400, 404, 500, 304, 302])
def test_another_status_is_refused(server: Server, status: int) -> None:
    server.answer = lambda handler: server.send(handler, b"", status)
    with pytest.raises(BadMedia, match=f"answered {status}"):
        fetcher("127.0.0.1").fetch(server.url(), soon())


def test_what_is_too_large_is_not_read_to_its_end(server: Server) -> None:
    sent = 0

    def endless(handler: http.server.BaseHTTPRequestHandler) -> None:
        nonlocal sent
        handler.send_response(200)
        handler.end_headers()
        for _ in range(20_000):
            sent += handler.wfile.write(bytes(10_000))

    server.answer = endless
    with pytest.raises(BadMedia, match="larger than 50000 bytes"):
        fetcher("127.0.0.1", max_bytes=50_000).fetch(server.url(), soon())
    assert sent < 100_000_000


@pytest.mark.parametrize("where", ["headers", "body"])
def test_a_host_that_drips_ends_at_the_deadline(server: Server, where: str) -> None:
    def drip(handler: http.server.BaseHTTPRequestHandler) -> None:
        if where == "body":
            handler.send_response(200)
            handler.end_headers()
        for _ in range(200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.05)

    server.answer = drip
    started = time.monotonic()
    with pytest.raises(BadMedia, match="took too long"):
        fetcher("127.0.0.1").fetch(server.url(), soon(0.4))
    assert time.monotonic() - started < 2


def test_a_host_that_says_nothing_ends_at_the_deadline(server: Server) -> None:
    over = threading.Event()

    def say_nothing(handler: http.server.BaseHTTPRequestHandler) -> None:
        over.wait(20)

    server.answer = say_nothing
    try:
        with pytest.raises(BadMedia, match="took too long"):
            fetcher("127.0.0.1").fetch(server.url(), soon(0.3))
    finally:
        over.set()


def test_a_resolver_that_hangs_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(20))
    started = time.monotonic()
    with pytest.raises(BadMedia, match="took too long"):
        fetcher("slow.test").fetch("http://slow.test/x", soon(0.3))
    assert time.monotonic() - started < 2
    over.set()


def test_a_host_that_hangs_up_is_the_clients_mistake(server: Server) -> None:
    server.answer = lambda handler: handler.connection.close()
    with pytest.raises(BadMedia, match="could not be fetched"):
        fetcher("127.0.0.1").fetch(server.url(), soon(5))


def test_nobody_listening_is_the_clients_mistake(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(BadMedia, match="could not be fetched"):
        fetcher("127.0.0.1").fetch(f"http://127.0.0.1:{port}/", soon(5))


def test_environment_proxies_are_not_used(monkeypatch: pytest.MonkeyPatch, server: Server, inside: Server) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, inside.url("/"))
    assert fetcher("127.0.0.1").fetch(server.url(), soon()) == PICTURE
