"""A request's pictures, from where their bytes are to encoder inputs and placeholder tokens; each is done once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import blake3
from PIL import Image

from triton_renderer.errors import InvalidRequest
from triton_renderer.render.bad_media import BadMedia, blamed_on
from triton_renderer.render.fetch import AddressPolicy, Fetcher, is_public
from triton_renderer.render.images import Images
from triton_renderer.render.item_cache import ItemCache, RenderedImage
from triton_renderer.render.local_files import LocalFiles
from triton_renderer.render.media import RequestMedia
from triton_renderer.render.media_options import MediaOptions
from triton_renderer.render.messages import ImagePart
from triton_renderer.render.pictures import decode, read_header
from triton_renderer.render.prompt import run_lengths
from triton_renderer.render.tokenizer import PromptTokenizer
from triton_renderer.settings import Settings
from triton_renderer.wire import encode_item, metadata_of

DEFAULTS = MediaOptions()
TOTAL_PIXELS = 2
"""All pictures of a request may have this many times the pixels that one may have."""


@dataclass(frozen=True)
class _Source:
    """Where a picture comes from: the cache, or a file whose header is read. `key` is the digest of the file."""

    image: RenderedImage | None
    key: bytes = b""
    header: Image.Image | None = None

    @property
    def pixels(self) -> int:
        """How many will be decoded."""
        return self.header.width * self.header.height if self.header else 0


class ImageRenderer:
    """Renders the pictures of one model. Safe to use from several threads."""

    def __init__(
        self,
        images: Images,
        tokenizer: PromptTokenizer,
        settings: Settings,
        identity: str,
        may_dial: AddressPolicy = is_public,
    ) -> None:
        """`identity` tells this model from others; with the processor's settings it is part of each picture's digest."""
        self._images = images
        self._max_images = settings.max_images
        self._max_pixels = settings.max_image_pixels
        self._max_bytes = settings.max_request_bytes
        self._fetcher = Fetcher(settings.allowed_media_hosts, may_dial)
        self._files = LocalFiles(settings.allowed_local_media_path)
        self._seed = blake3.blake3(f"{identity}\0{images.identity()}\0".encode()).digest()
        self._cache = ItemCache()
        self.slot_id = tokenizer.token_id(images.slot)
        self._tokenizer = tokenizer
        self._hidden_slot = tokenizer.hide(images.slot)
        self.embed_token_id = images.embed_token_id

    def render(
        self, parts: Sequence[ImagePart], attached: Sequence[memoryview], options: MediaOptions = DEFAULTS
    ) -> list[RenderedImage]:
        """One result for each part, in order. Raises InvalidRequest naming the part that is at fault."""
        if len(parts) > self._max_images:
            raise InvalidRequest(f"messages: {len(parts)} pictures are more than the limit of {self._max_images}", "messages")
        media = RequestMedia(attached, self._fetcher, self._files, self._max_bytes)
        pixels_left = self._max_pixels * TOTAL_PIXELS
        sources = []
        # All headers before the first pixel: a request that is too large altogether costs next to nothing.
        for part in parts:
            with blamed_on(part.param):
                source = self._open(part, media, options)
                pixels_left -= source.pixels
                if pixels_left < 0:
                    raise BadMedia(f"the request's pictures have more than {self._max_pixels * TOTAL_PIXELS} pixels together")
            sources.append(source)
        rendered = []
        for part, source in zip(parts, sources, strict=True):
            with blamed_on(part.param):
                rendered.append(self._render(part, source, options))
        return rendered

    def written_out(self, text: str, images: Sequence[RenderedImage]) -> str | None:
        """The template's text with the pictures' placeholders in place of its slots; None where tokens can be put there."""
        if all(image.text is None for image in images):
            return None
        first, *others = text.split(self._hidden_slot)
        placeholders = [self._tokenizer.hide(image.text or self._tokenizer.decode(image.token_ids)) for image in images]
        return first + "".join(map("".join, zip(placeholders, others, strict=True)))

    def _open(self, part: ImagePart, media: RequestMedia, options: MediaOptions) -> "_Source":
        """Finds the picture in the cache, or reads its header."""
        if part.url is None:
            return _Source(self._known(str(part.uuid), options))
        data = media.read(part.url)
        key = self._hasher(options).update(data).digest()
        image = self._cache.by_source(key)
        return _Source(image, key, None if image else read_header(data, self._max_pixels))

    def _render(self, part: ImagePart, source: "_Source", options: MediaOptions) -> RenderedImage:
        # The same file may stand in the request twice: the first time has put it into the cache.
        image = source.image or self._cache.by_source(source.key)
        if image is None and source.header is not None:
            image = self._render_pixels(decode(source.header, options.background), options)
            self._cache.add(source.key, image)
        if image is None:
            raise RuntimeError("a source is a cached picture or has a header")
        if part.url is not None and part.uuid is not None:
            self._cache.name(_name(part.uuid, options), image.digest)
        return image

    def _known(self, uuid: str, options: MediaOptions) -> RenderedImage:
        image = self._cache.by_name(_name(uuid, options))
        if image is None:
            raise BadMedia(f"no picture is kept under the uuid {uuid!r}, or several were sent under it: send its data again")
        return image

    def _render_pixels(self, picture: Image.Image, options: MediaOptions) -> RenderedImage:
        digest = self._digest(picture, options)
        known = self._cache.by_digest(digest)
        if known is not None:
            return known
        try:
            prepared = self._images.prepare(picture, options.processor)
        except ValueError as error:  # a size that the processor cannot bring into its limits
            if options.processor:
                raise InvalidRequest(f"mm_processor_kwargs: {error}", "mm_processor_kwargs") from error
            raise BadMedia(f"the model does not take a picture of {picture.width}×{picture.height} pixels: {error}") from error
        metadata = metadata_of(prepared.item)
        return RenderedImage(
            digest,
            encode_item(prepared.item),
            encode_item(metadata) if metadata else b"",
            prepared.token_ids,
            run_lengths(prepared.token_ids == self.embed_token_id),
            prepared.text,
        )

    def _hasher(self, options: MediaOptions) -> Any:
        """Over the model, the processor's settings and the request's options."""
        return blake3.blake3(self._seed).update(blake3.blake3(options.identity).digest() if options.identity else b"")

    def _digest(self, picture: Image.Image, options: MediaOptions) -> str:
        """Over what `_hasher` has, and mode, size and every pixel."""
        digest = self._hasher(options).update(f"{picture.mode} {picture.width} {picture.height}\0".encode())
        hexadecimal: str = digest.update(picture.tobytes()).hexdigest()
        return hexadecimal


def _name(uuid: str, options: MediaOptions) -> str:
    """A client's name for a picture that was rendered with these options."""
    return f"{uuid}\0{options.identity.decode()}" if options.identity else uuid
