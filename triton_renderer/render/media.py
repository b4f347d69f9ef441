"""Where the bytes of a picture or video come from: attached to the job, a data URL, the web, or a folder of this machine."""

import time
from collections.abc import Sequence

from triton_renderer.protocol.media import (
    ATTACHED,
    ATTACHED_FRAMES,
    MAX_FRAMES,
    decode_data_url,
    decode_frames_url,
    is_frames_url,
)
from triton_renderer.render.bad_media import BadMedia
from triton_renderer.render.fetch import Fetcher
from triton_renderer.render.local_files import SCHEME, LocalFiles

FETCH_TIMEOUT_S = 10.0
"""For all media of one request that have to be fetched, together."""


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
        if url.startswith(ATTACHED_FRAMES):
            raise BadMedia("the frames of a video are not a picture: send them as video_url")
        if url[:5].lower() == "data:":
            data = decode_data_url(url)
            if data is None:
                raise BadMedia(_data_url_problem(url))
            return data
        data = self._files.read(url, self._bytes_left) if url[:5].lower() == SCHEME else self._fetch(url)
        self._bytes_left -= len(data)
        return data

    def read_video(self, url: str) -> bytes | memoryview | list[bytes | memoryview]:
        """The bytes of a video file, or those of its frames where the client sends these. Raises BadMedia."""
        if url.startswith(ATTACHED_FRAMES):
            return [self._attachment(index) for index in url.removeprefix(ATTACHED_FRAMES).split(",")]
        if not is_frames_url(url):
            return self.read(url)
        frames = decode_frames_url(url)
        if frames is None and url.count(",") > MAX_FRAMES:
            raise BadMedia(f"a video of more than {MAX_FRAMES} frames is not supported")
        if frames is None:
            raise BadMedia(_data_url_problem(url))
        return list(frames)

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
