"""Rendered pictures are kept by digests of our own; a client's names for them are only names."""

from typing import Any

import numpy as np
import pytest

from tests.unit.render.helpers import chat, encoded, image_part, noise, png, settings, user
from triton_renderer.errors import InvalidRequest
from triton_renderer.render import Rendered, Renderer
from triton_renderer.render import item_cache as item_cache_module
from triton_renderer.render import media_renderer as media_renderer_module
from triton_renderer.render.item_cache import ItemCache, RenderedItem


def image(digest: str, size: int = 100) -> RenderedItem:
    return RenderedItem("image", digest, bytes(size - 8), b"", np.zeros(1, np.int64), None)


def test_pictures_are_found_by_file_by_pixels_and_by_name() -> None:
    cache = ItemCache()
    cache.add(b"file", image("a"))
    cache.name("cat", "a")
    assert cache.by_source(b"file") == cache.by_digest("a") == cache.by_name("cat") == image("a")
    assert cache.by_source(b"other") is cache.by_digest("b") is cache.by_name("dog") is None


def test_the_longest_unused_leaves_first() -> None:
    cache = ItemCache(budget_bytes=250)
    for name in "ab":
        cache.add(name.encode(), image(name))
    assert cache.by_source(b"a") is not None
    cache.add(b"c", image("c"))
    assert cache.by_digest("b") is None
    assert cache.by_digest("a") is not None
    assert cache.nbytes == 200


def test_what_is_larger_than_the_budget_is_not_kept() -> None:
    cache = ItemCache(budget_bytes=99)
    cache.add(b"a", image("a"))
    assert cache.by_digest("a") is None
    assert cache.nbytes == 0


def test_adding_a_picture_twice_counts_once() -> None:
    cache = ItemCache()
    cache.add(b"png", image("a"))
    cache.add(b"bmp", image("a"))
    assert cache.nbytes == 100
    assert cache.by_source(b"png") is cache.by_source(b"bmp")


def test_a_name_for_two_pictures_never_hits_again() -> None:
    cache = ItemCache()
    for digest in "ab":
        cache.add(digest.encode(), image(digest))
    cache.name("cat", "a")
    cache.name("cat", "a")
    assert cache.by_name("cat") == image("a")
    cache.name("cat", "b")
    assert cache.by_name("cat") is None
    cache.name("cat", "a")
    assert cache.by_name("cat") is None


def test_names_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_cache_module, "MAX_NAMES", 2)
    cache = ItemCache()
    cache.add(b"a", image("a"))
    for name in ("one", "two", "three"):
        cache.name(name, "a")
    assert cache.by_name("one") is None
    assert cache.by_name("three") is not None


# Through the renderer


@pytest.fixture
def fresh() -> Renderer:
    return Renderer.load(settings())


def only_name(uuid: Any, **further: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": None, "uuid": uuid} | further


def hashes(rendered: Rendered) -> list[str]:
    return [feature.mm_hash for feature in rendered.context.features]


def test_a_uuid_takes_the_place_of_the_hash_and_nothing_else(fresh: Renderer) -> None:
    named, plain = chat(fresh, user(image_part(uuid="cat"))), chat(fresh, user(image_part()))
    assert hashes(named) == ["cat"]
    assert len(hashes(plain)[0]) == 64
    assert named.items == plain.items
    assert hashes(chat(fresh, user(image_part(uuid=17)))) == ["17"]


@pytest.mark.parametrize("further", [{}, {"image_url": {}}, {"image_url": {"url": None}}])
def test_a_known_uuid_needs_no_data(fresh: Renderer, further: dict[str, Any]) -> None:
    first = chat(fresh, user(image_part(uuid="cat")))
    again = chat(fresh, user(only_name("cat", **further)))
    assert again.items == first.items
    assert again.context.features == first.context.features
    without = {"type": "image_url", "uuid": "cat"}
    assert chat(fresh, user(without)).items == first.items


def test_an_unknown_uuid_without_data_asks_for_it(fresh: Renderer) -> None:
    with pytest.raises(InvalidRequest, match="send its data again") as caught:
        chat(fresh, user(only_name("dog")))
    assert caught.value.param == "messages.0.content.0"


def test_a_known_uuid_with_another_picture_gives_that_picture(fresh: Renderer) -> None:
    first, second = png(seed=1), png(seed=2)
    chat(fresh, user(image_part(first, uuid="cat")))
    other = chat(fresh, user(image_part(second, uuid="cat")))
    assert other.items == chat(fresh, user(image_part(second))).items
    with pytest.raises(InvalidRequest, match="several were sent under it"):
        chat(fresh, user(only_name("cat")))


def test_two_pictures_of_one_request_under_one_uuid_stay_two(fresh: Renderer) -> None:
    rendered = chat(fresh, user(image_part(png(seed=1), uuid="x"), image_part(png(seed=2), uuid="x")))
    assert hashes(rendered) == ["x", "x"]
    assert rendered.items[0] != rendered.items[2]


def test_a_hash_of_ours_as_uuid_is_only_a_name(fresh: Renderer) -> None:
    victim = hashes(chat(fresh, user(image_part(png(seed=1)))))[0]
    with pytest.raises(InvalidRequest, match="send its data again"):
        chat(fresh, user(only_name(victim)))
    other = chat(fresh, user(image_part(png(seed=2), uuid=victim)))
    assert other.items == chat(fresh, user(image_part(png(seed=2)))).items


def test_a_picture_is_processed_once(fresh: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    real = media_renderer_module.decode
    monkeypatch.setattr(
        media_renderer_module, "decode", lambda header, *options: decoded.append(header.size) or real(header, *options)
    )
    picture = noise(50, 40)
    for data in (encoded(picture), encoded(picture), encoded(picture, "BMP")):
        chat(fresh, user(image_part(data), image_part(data)))
    assert len(decoded) == 2  # the PNG and the BMP; the BMP's pixels were then known
