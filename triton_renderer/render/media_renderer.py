"""A request's pictures and videos, from where their bytes are to encoder inputs and placeholder tokens; each is done once."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import blake3
from PIL import Image

from triton_renderer.errors import InvalidRequest
from triton_renderer.render.bad_media import BadMedia, blamed_on
from triton_renderer.render.fetch import AddressPolicy, Fetcher, is_public
from triton_renderer.render.images import Images, MediaInput, MediaPlace
from triton_renderer.render.item_cache import ItemCache, Modality, RenderedItem
from triton_renderer.render.local_files import LocalFiles
from triton_renderer.render.media import RequestMedia
from triton_renderer.render.media_options import ALL, DEFAULTS, MediaOptions
from triton_renderer.render.messages import MediaPart
from triton_renderer.render.pictures import decode, read_header
from triton_renderer.render.prompt import run_lengths
from triton_renderer.render.qwen_videos import QwenVideos
from triton_renderer.render.tokenizer import PromptTokenizer
from triton_renderer.render.videos import FrameSequence, Video, open_video
from triton_renderer.settings import Settings
from triton_renderer.wire import encode_item, metadata_of

TOTAL_PIXELS: Mapping[Modality, int] = {"image": 2, "video": 16}
"""All pictures of a request, or all frames that are taken of its videos, may have this many times the pixels of one picture."""
VIDEO_TIMEOUT_S = 30.0
"""For decoding all videos of one request, together."""
SEQUENCE_RATE = 1.0
"""Frames a second of a video that is sent as frames, unless the request says otherwise."""
Bytes = bytes | memoryview
_NAMES: Mapping[Modality, str] = {"image": "picture", "video": "video"}


@dataclass(frozen=True)
class _Source:
    """Where an item comes from: the cache, a picture whose header is read, or an opened video. `key`: the bytes' digest."""

    item: RenderedItem | None = None
    key: bytes = b""
    header: Image.Image | None = None
    video: Video | None = None
    pixels: int = 0
    """How many will be taken over."""


class MediaRenderer:
    """Renders the pictures and videos of one model. Safe to use from several threads."""

    def __init__(
        self,
        images: Images,
        videos: QwenVideos | None,
        tokenizer: PromptTokenizer,
        settings: Settings,
        *,
        identity: str,
        may_dial: AddressPolicy = is_public,
    ) -> None:
        """`identity` tells this model from others; with the processors' settings it is part of each item's digest."""
        self._images = images
        self._videos = videos
        self._limits: Mapping[Modality, int] = {"image": settings.max_images, "video": settings.max_videos}
        self._max_pixels = settings.max_image_pixels
        self._max_bytes = settings.max_request_bytes
        self._fetcher = Fetcher(settings.allowed_media_hosts, may_dial)
        self._files = LocalFiles(settings.allowed_local_media_path)
        processors = "\0".join(processor.identity() for processor in (images, videos) if processor is not None)
        self._seed = blake3.blake3(f"{identity}\0{processors}\0".encode()).digest()
        self._cache = ItemCache()
        self._tokenizer = tokenizer
        self._hidden_slot = tokenizer.hide(images.slot)
        takes: dict[Modality, MediaPlace] = {"image": images}
        if videos is not None:
            takes["video"] = videos
        self.slot_ids: dict[Modality, int | None] = {name: tokenizer.token_id(media.slot) for name, media in takes.items()}
        """The tokens that the template writes in the place of a picture or video."""
        self.embed_token_ids: dict[Modality, int] = {name: media.embed_token_id for name, media in takes.items()}
        """The tokens that take an encoder row."""

    def render(
        self, parts: Sequence[MediaPart], attached: Sequence[memoryview], options: MediaOptions = DEFAULTS
    ) -> list[RenderedItem]:
        """One result for each part, in order. Raises InvalidRequest naming the part that is at fault."""
        for modality, limit in self._limits.items():
            if (count := sum(part.modality == modality for part in parts)) > limit:
                raise InvalidRequest(f"messages: {count} {_NAMES[modality]}s are more than the limit of {limit}", "messages")
        media = RequestMedia(attached, self._fetcher, self._files, self._max_bytes)
        deadline = time.monotonic() + VIDEO_TIMEOUT_S
        left = {modality: self._max_pixels * times for modality, times in TOTAL_PIXELS.items()}
        sources = []
        # All headers before the first pixel: a request that is too large altogether costs next to nothing.
        for part in parts:
            with blamed_on(part.param):
                source = self._open(part, media, options, deadline)
                left[part.modality] -= source.pixels
                if left[part.modality] < 0:
                    most = self._max_pixels * TOTAL_PIXELS[part.modality]
                    raise BadMedia(f"the request's {_NAMES[part.modality]}s have more than {most} pixels together")
            sources.append(source)
        rendered = []
        for part, source in zip(parts, sources, strict=True):
            with blamed_on(part.param):
                rendered.append(self._render(part, source, options))
        return rendered

    def written_out(self, text: str, items: Sequence[RenderedItem]) -> str | None:
        """The template's text with the pictures' placeholders in place of its slots; None where tokens can be put there."""
        if all(item.text is None for item in items):
            return None
        first, *others = text.split(self._hidden_slot)
        placeholders = [self._tokenizer.hide(item.text or self._tokenizer.decode(item.token_ids)) for item in items]
        return first + "".join(map("".join, zip(placeholders, others, strict=True)))

    def _open(self, part: MediaPart, media: RequestMedia, options: MediaOptions, deadline: float) -> _Source:
        """Finds the item in the cache, or reads its header."""
        if part.url is None:
            return _Source(self._known(part, options))
        if part.modality == "video":
            return self._open_video(media.read_video(part.url), options, deadline)
        data = media.read(part.url)
        key = self._hasher("image", options).update(data).digest()
        if (item := self._cache.by_source(key)) is not None:
            return _Source(item, key)
        header = read_header(data, self._max_pixels)
        return _Source(None, key, header, pixels=header.width * header.height)

    def _open_video(self, data: Bytes | list[Bytes], options: MediaOptions, deadline: float) -> _Source:
        """The same for a video file, or the frames that the client sends in place of one."""
        if isinstance(data, list) and options.video.max_sequence != ALL:
            data = data[: options.video.max_sequence]
        key = self._video_key(data, options)
        if (item := self._cache.by_source(key)) is not None:
            return _Source(item, key)
        if self._videos is None:
            raise RuntimeError("a video for a model that takes none")
        if isinstance(data, list):
            rate = options.video.rate or SEQUENCE_RATE
            video: Video = FrameSequence(data, self._max_pixels, deadline, rate, options.background)
        else:
            video = open_video(data, self._max_pixels, deadline)
        pixels = len(self._videos.taken(video, options.video)) * video.width * video.height
        return _Source(None, key, video=video, pixels=pixels)

    def _render(self, part: MediaPart, source: _Source, options: MediaOptions) -> RenderedItem:
        # The same file may stand in the request twice: the first time has put it into the cache.
        item = source.item or self._cache.by_source(source.key)
        if item is None:
            item = self._render_new(source, options)
            self._cache.add(source.key, item)
        if part.url is not None and part.uuid is not None:
            self._cache.name(_name(part.modality, part.uuid, options), item.digest)
        return item

    def _known(self, part: MediaPart, options: MediaOptions) -> RenderedItem:
        item = self._cache.by_name(_name(part.modality, str(part.uuid), options))
        if item is None:
            raise BadMedia(
                f"no {_NAMES[part.modality]} is kept under the uuid {part.uuid!r}, or several were sent under it: send its data "
                "again"
            )
        return item

    def _render_new(self, source: _Source, options: MediaOptions) -> RenderedItem:
        if source.video is not None and self._videos is not None:
            described = f"a video of {source.video.width}×{source.video.height} pixels"
            with _refusing(described, options.video.processor):
                return self._item("video", source.key.hex(), self._videos.prepare(source.video, options.video))
        if source.header is None:
            raise RuntimeError("a source is a cached item, or has a header or a video")
        picture = decode(source.header, options.background)
        digest = self._digest(picture, options)
        known = self._cache.by_digest(digest)
        if known is not None:
            return known
        with _refusing(f"a picture of {picture.width}×{picture.height} pixels", options.processor):
            return self._item("image", digest, self._images.prepare(picture, options.processor))

    def _item(self, modality: Modality, digest: str, prepared: MediaInput) -> RenderedItem:
        metadata = metadata_of(prepared.item)
        return RenderedItem(
            modality,
            digest,
            encode_item(prepared.item),
            encode_item(metadata) if metadata else b"",
            prepared.token_ids,
            run_lengths(prepared.token_ids == self.embed_token_ids[modality]),
            prepared.text,
        )

    def _video_key(self, data: Bytes | list[Bytes], options: MediaOptions) -> bytes:
        """Over what `_hasher` has, and every byte."""
        hasher = self._hasher("video", options).update(b"video frames\0" if isinstance(data, list) else b"video file\0")
        for part in data if isinstance(data, list) else [data]:
            hasher.update(len(part).to_bytes(8, "little")).update(part)
        key: bytes = hasher.digest()
        return key

    def _hasher(self, modality: Modality, options: MediaOptions) -> Any:
        """Over the model, the processors' settings and the request's options."""
        identity = options.identity(modality)
        return blake3.blake3(self._seed).update(blake3.blake3(identity).digest() if identity else b"")

    def _digest(self, picture: Image.Image, options: MediaOptions) -> str:
        """Over what `_hasher` has, and mode, size and every pixel."""
        digest = self._hasher("image", options).update(f"{picture.mode} {picture.width} {picture.height}\0".encode())
        hexadecimal: str = digest.update(picture.tobytes()).hexdigest()
        return hexadecimal


def _name(modality: Modality, uuid: str, options: MediaOptions) -> str:
    """A client's name for a picture or video that was rendered with these options."""
    return f"{modality}\0{uuid}\0{options.identity(modality).decode()}"


@contextmanager
def _refusing(described: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Says what a processor's ValueError is about: a size that it cannot bring into its limits, or the request's arguments."""
    try:
        yield
    except ValueError as error:
        if arguments:
            raise InvalidRequest(f"mm_processor_kwargs: {error}", "mm_processor_kwargs") from error
        raise BadMedia(f"the model does not take {described}: {error}") from error
