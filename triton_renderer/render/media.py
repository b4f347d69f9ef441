"""Where a picture's bytes come from: attached to the job, a data URL, the web, or a folder of this machine."""

import time
from collections.abc import Sequence

from triton_renderer.protocol.media import ATTACHED, decode_data_url
from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.fetch import Fetcher
from triton_renderer.render.local_files import SCHEME, LocalFiles

FETCH_TIMEOUT_S = 10.0
"""For all pictures of one request that have to be fetched, together."""


class RequestMedia:
    """The media of one request. `attached` are the slices of the job's `media` tensor.

    What a request makes this server fetch and read is together no more than a request itself may have: `max_bytes`.
    """

    def __init__(
        self,
        attached: Sequence[memoryview],
        fetcher: Fetcher,
        files: LocalFiles,
        max_bytes: int,
        timeout_s: float = FETCH_TIMEOUT_S,
    ) -> None:
        self._attached = attached
        self._fetcher = fetcher
        self._files = files
        self._bytes_left = max_bytes
        self._timeout_s = timeout_s
        self._deadline: float | None = None

    def read(self, url: str) -> bytes | memoryview:
        """The bytes behind `url`. Raises BadMedia where there are none to be had."""
        if url.startswith(ATTACHED):
            return self._attachment(url.removeprefix(ATTACHED))
        if url[:5].lower() == "data:":
            data = decode_data_url(url)
            if data is None:
                raise BadMedia(_data_url_problem(url))
            return data
        data = self._files.read(url, self._bytes_left) if url[:5].lower() == SCHEME else self._fetch(url)
        self._bytes_left -= len(data)
        return data

    def _fetch(self, url: str) -> bytes:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._timeout_s
        return self._fetcher.fetch(url, self._deadline, self._bytes_left)

    def _attachment(self, index: str) -> memoryview:
        if not (index.isascii() and index.isdigit() and len(index) < 6 and int(index) < len(self._attached)):
            raise BadMedia(f"there is no attachment {index[:20]!r}: the request has {len(self._attached)}")
        return self._attached[int(index)]


def _data_url_problem(url: str) -> str:
    header, comma, _ = url.partition(",")
    if not comma:
        return "the data URL has no comma"
    if header.rpartition(";")[2].strip().lower() != "base64":
        return "only data URLs in base64 are supported"
    return "the data URL's base64 is not valid"
