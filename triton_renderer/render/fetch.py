"""Fetches pictures and videos over HTTP without becoming a way into the operator's network.

Only hosts that the operator named are asked. Every hop of a redirect is checked like the first one. A host's addresses are
checked after resolution, and the address that was checked is the one that is dialled: the name is never resolved again.
"""

import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import httpcore

from triton_renderer.render.bad_media import BadMedia
from triton_renderer.settings import SettingsError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressPolicy = Callable[[IPAddress], bool]

MAX_REDIRECTS = 5
REDIRECTS = frozenset({301, 302, 303, 307, 308})
_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SPECIAL = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")))
"""Registered for special purposes, and public to this Python's `ipaddress`."""
_TARGET_SAFE = "%/:=&?~#+!$,;'@()*[]"


def is_public(address: IPAddress) -> bool:
    """The address belongs to the public internet; an IPv4 address inside an IPv6 one is judged itself."""
    if isinstance(address, ipaddress.IPv6Address):
        teredo = address.teredo
        inner = address.ipv4_mapped or address.sixtofour or (teredo and teredo[1])
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner:
            return is_public(inner)
        if address.is_site_local:
            return False
    if any(address in network for network in _SPECIAL):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


class Fetcher:
    """Fetches from the allowed hosts. Safe to use from several threads."""

    def __init__(self, allowed_hosts: Iterable[str], may_dial: AddressPolicy = is_public) -> None:
        """Raises SettingsError where one of the hosts is not a host name."""
        self._allowed_hosts = frozenset(_allowed_host(host) for host in allowed_hosts)
        self._may_dial = may_dial
        self._ssl = ssl.create_default_context() if self._allowed_hosts else None
        self._resolver = ThreadPoolExecutor(4, thread_name_prefix="resolve")

    def fetch(self, url: str, deadline: float, max_bytes: int) -> bytes:
        """The body behind an http or https URL, of at most `max_bytes`.

        `deadline` is a time of `time.monotonic()` by which everything, redirects included, must be over.
        Raises BadMedia where the host or its address is not allowed, and for whatever else goes wrong.
        """
        for _ in range(MAX_REDIRECTS + 1):
            target = self._checked(url)
            try:
                status, location, body = self._get(target, deadline, max_bytes)
            except httpcore.TimeoutException as error:
                raise BadMedia(f"{target.hostname} took too long to send the file") from error
            except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol) as error:
                raise BadMedia(f"the file could not be fetched from {target.hostname}") from error
            if location is None:
                if status != 200:
                    raise BadMedia(f"{target.hostname} answered {status} instead of a file")
                return body
            try:
                url = urljoin(url, location)
            except ValueError as error:
                raise BadMedia(f"{target.hostname} redirects to a URL that is not well formed") from error
        raise BadMedia(f"more than {MAX_REDIRECTS} redirects")

    def _checked(self, url: str) -> SplitResult:
        try:
            target = urlsplit(url)
            host, _ = _canonical_host(target.hostname or ""), target.port
        except ValueError as error:  # of urlsplit, the port, or the host's characters
            raise BadMedia("the URL is not well formed") from error
        if target.scheme not in _PORTS:
            raise BadMedia("the URL must be http, https, file, or a data URL")
        if not host:
            raise BadMedia("the URL names no host")
        if target.username is not None or target.password is not None:
            raise BadMedia("a URL with a user name or password is refused")
        if host not in self._allowed_hosts:
            raise BadMedia(f"this server does not fetch media from {target.hostname}")
        return target

    def _get(self, target: SplitResult, deadline: float, max_bytes: int) -> tuple[int, str | None, bytes]:
        """Status, redirect target if it is one, and body of one GET, which follows nothing."""
        host = _canonical_host(target.hostname or "")
        path = quote(target.path or "/", safe=_TARGET_SAFE) + (
            f"?{quote(target.query, safe=_TARGET_SAFE)}" if target.query else ""
        )
        # Built from the very parts that were checked, so that no second parser can see another host in it.
        url = httpcore.URL(scheme=target.scheme, host=host, port=target.port, target=path)
        backend = _CheckedBackend(self._may_dial, self._resolver, deadline)
        headers = [
            ("Host", (f"[{host}]" if ":" in host else host) + (f":{target.port}" if target.port else "")),
            ("Accept", "image/*, video/*"),
            ("Accept-Encoding", "identity"),
            ("User-Agent", "triton-renderer"),
        ]
        with (
            httpcore.ConnectionPool(ssl_context=self._ssl, network_backend=backend) as pool,
            pool.stream("GET", url, headers=headers) as response,
        ):
            if response.status in REDIRECTS:
                location = {name.lower(): value for name, value in response.headers}.get(b"location")
                if location is not None:
                    return response.status, location.decode("latin-1"), b""
            return response.status, None, _limited(response.iter_stream(), max_bytes)


class _CheckedBackend(httpcore.NetworkBackend):
    """Dials only addresses that the policy allows; each operation ends at the deadline."""

    def __init__(self, may_dial: AddressPolicy, resolver: ThreadPoolExecutor, deadline: float) -> None:
        self._may_dial = may_dial
        self._resolver = resolver
        self._deadline = deadline
        self._network = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        failure: httpcore.NetworkError | None = None
        for address in self._resolve(host, port):
            try:
                stream = self._network.connect_tcp(
                    str(address), port, _left(self._deadline), local_address=local_address, socket_options=socket_options
                )
            except httpcore.ConnectError as error:
                failure = error
            else:
                return _DeadlineStream(stream, self._deadline)
        raise failure or httpcore.ConnectError(f"{host} has no address")

    def _resolve(self, host: str, port: int) -> list[IPAddress]:
        # The system's resolver cannot be given a time limit, so it is waited for no longer than there is time.
        future = self._resolver.submit(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            found = future.result(_left(self._deadline))
        except FutureTimeoutError as error:
            raise httpcore.ConnectTimeout(f"{host} could not be resolved in time") from error
        except (OSError, UnicodeError) as error:
            raise BadMedia(f"the host {host} is not known") from error
        addresses = list(dict.fromkeys(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found))
        # One forbidden address among several is enough: a name that points inside at times is not to be trusted at all.
        if not all(self._may_dial(address) for address in addresses):
            raise BadMedia(f"{host} has an address that this server does not fetch from")
        return addresses


class _DeadlineStream(httpcore.NetworkStream):
    """A connection on which each operation ends at the deadline, however slowly the bytes drip."""

    def __init__(self, stream: httpcore.NetworkStream, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._deadline))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._deadline))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        secured = self._stream.start_tls(ssl_context, server_hostname, _left(self._deadline))
        return _DeadlineStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _limited(chunks: Iterable[bytes], max_bytes: int) -> bytes:
    received = bytearray()
    for chunk in chunks:
        received += chunk
        if len(received) > max_bytes:
            raise BadMedia(f"the file is larger than {max_bytes} bytes")
    return bytes(received)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise httpcore.ReadTimeout("the deadline has passed")
    return left


def _allowed_host(host: str) -> str:
    try:
        return _canonical_host(host.strip("[]"))
    except UnicodeError as error:
        raise SettingsError(f"ALLOWED_MEDIA_HOSTS: {host!r} is not a host name") from error


def _canonical_host(host: str) -> str:
    """Lower case, ASCII, without the root's dot. Raises UnicodeError, a ValueError, where that is not possible."""
    host = host.lower().rstrip(".")
    return host if host.isascii() else host.encode("idna").decode("ascii")
