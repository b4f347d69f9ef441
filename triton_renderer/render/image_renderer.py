"""A request's pictures, from where their bytes are to encoder inputs and placeholder tokens; each is done once."""

from collections.abc import Sequence

import blake3
from PIL import Image

from triton_renderer.errors import InvalidRequest
from triton_renderer.render.bad_media import BadMedia, blamed_on
from triton_renderer.render.fetch import AddressPolicy, Fetcher, is_public
from triton_renderer.render.images import Images
from triton_renderer.render.item_cache import ItemCache, RenderedImage
from triton_renderer.render.media import RequestMedia
from triton_renderer.render.messages import ImagePart
from triton_renderer.render.pictures import decode, read_header
from triton_renderer.render.prompt import run_lengths
from triton_renderer.render.tokenizer import PromptTokenizer
from triton_renderer.settings import Settings
from triton_renderer.wire import encode_item, metadata_of

TOTAL_PIXELS = 4
"""All pictures of a request may have this many times the pixels that one may have."""


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
        self._fetcher = Fetcher(settings.allowed_media_hosts, settings.max_request_bytes, may_dial)
        self._seed = blake3.blake3(f"{identity}\0{images.identity()}\0".encode()).digest()
        self._cache = ItemCache()
        self.slot_id = tokenizer.token_id(images.slot)
        self.embed_token_id = images.embed_token_id

    def render(self, parts: Sequence[ImagePart], attached: Sequence[memoryview]) -> list[RenderedImage]:
        """One result for each part, in order. Raises InvalidRequest naming the part that is at fault."""
        if len(parts) > self._max_images:
            raise InvalidRequest(f"messages: {len(parts)} pictures are more than the limit of {self._max_images}", "messages")
        media = RequestMedia(attached, self._fetcher)
        pixels_left = self._max_pixels * TOTAL_PIXELS
        rendered = []
        for part in parts:
            with blamed_on(part.param):
                image, pixels = self._render(part, media, pixels_left)
            pixels_left -= pixels
            rendered.append(image)
        return rendered

    def _render(self, part: ImagePart, media: RequestMedia, pixels_left: int) -> tuple[RenderedImage, int]:
        """The picture, and how many pixels were decoded for it."""
        if part.url is None:
            return self._known(str(part.uuid)), 0
        data = media.read(part.url)
        source = blake3.blake3(self._seed).update(data).digest()
        image, pixels = self._cache.by_source(source), 0
        if image is None:
            header = read_header(data, self._max_pixels)
            pixels = header.width * header.height
            if pixels > pixels_left:
                raise BadMedia(f"the request's pictures have more than {self._max_pixels * TOTAL_PIXELS} pixels together")
            image = self._render_pixels(decode(header))
            self._cache.add(source, image)
        if part.uuid is not None:
            self._cache.name(part.uuid, image.digest)
        return image, pixels

    def _known(self, uuid: str) -> RenderedImage:
        image = self._cache.by_name(uuid)
        if image is None:
            raise BadMedia(f"no picture is kept under the uuid {uuid!r}, or several were sent under it: send its data again")
        return image

    def _render_pixels(self, picture: Image.Image) -> RenderedImage:
        digest = self._digest(picture)
        known = self._cache.by_digest(digest)
        if known is not None:
            return known
        try:
            prepared = self._images.prepare(picture)
        except ValueError as error:  # a size that the processor cannot bring into its limits
            raise BadMedia(f"the model does not take a picture of {picture.width}×{picture.height} pixels: {error}") from error
        metadata = metadata_of(prepared.item)
        return RenderedImage(
            digest,
            encode_item(prepared.item),
            encode_item(metadata) if metadata else b"",
            prepared.token_ids,
            run_lengths(prepared.token_ids == self.embed_token_id),
        )

    def _digest(self, picture: Image.Image) -> str:
        """Over the model, the processor's settings, mode, size and every pixel."""
        digest = blake3.blake3(self._seed).update(f"{picture.mode} {picture.width} {picture.height}\0".encode())
        hexadecimal: str = digest.update(picture.tobytes()).hexdigest()
        return hexadecimal
