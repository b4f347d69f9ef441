"""The vision tower behind its checks: what a client sends is hostile until it fits in every size."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor

from triton_renderer import tensors
from triton_renderer.checkpoint import load_config
from triton_renderer.encode import Encoder
from triton_renderer.encode.encoder import Encoded
from triton_renderer.errors import InvalidRequest
from triton_renderer.protocol.stages import DerenderContext, FeatureItem, RequestContext
from triton_renderer.settings import load_settings
from triton_renderer.wire import Field, Item, encode_item, metadata_of

VISION = load_config(load_settings()).vision_config
MERGE = VISION.spatial_merge_size
GRID = np.array([1, 4, 6])
WIDTH = VISION.in_channels * VISION.temporal_patch_size * VISION.patch_size**2


@pytest.fixture(scope="module")
def loaded() -> Encoder:
    encoder = Encoder.load(load_settings())
    assert isinstance(encoder, Encoder)
    return encoder


@pytest.fixture
def encoder(loaded: Encoder) -> Encoder:
    """The loaded tower with an empty cache."""
    loaded.cache = type(loaded.cache)(10 * 2**20)
    return loaded


def picture(seed: int, height: int = 4, width: int = 6) -> Item:
    values = np.random.default_rng(seed).integers(0, 256, (height * width, WIDTH), dtype=np.uint8)
    return {
        "pixel_values": Field(values),
        "image_grid_thw": Field(np.array([1, height, width]), "batched", {"keep_on_cpu": True}),
    }


def film(seed: int, frames: int = 3, height: int = 4, width: int = 6) -> Item:
    values = np.random.default_rng(seed).integers(0, 256, (frames * height * width, WIDTH), dtype=np.uint8)
    return {
        "pixel_values_videos": Field(values),
        "video_grid_thw": Field(np.array([frames, height, width]), "batched", {"keep_on_cpu": True}),
        "timestamps": Field([0.5 + index for index in range(frames)], "batched", {"keep_on_cpu": True}),
    }


def rows_of(item: Item) -> int:
    return int(np.prod(item["image_grid_thw"].data)) // MERGE**2  # type: ignore[arg-type]


def encode(
    encoder: Encoder, items: list[tuple[str, Item | bytes | None, Item | None, int]], ec: dict[str, Any] | None = None
) -> Encoded:
    """items: name (of a video one that begins with `video`), kwargs, metadata, rows reserved."""
    features, parts, offset = [], [], 1
    for name, data, metadata, rows in items:
        modality = "video" if name.startswith("video") else "image"
        features.append(FeatureItem(modality=modality, mm_hash=name, placeholder={"offset": offset, "length": rows}))  # type: ignore[arg-type]
        parts += [
            data if isinstance(data, bytes) else encode_item(data) if data else b"",
            encode_item(metadata) if metadata else b"",
        ]
        offset += rows + 1
    mm_data, mm_offsets = tensors.concatenate(parts)
    return encoder.encode(mm_data, mm_offsets, RequestContext(id="r", features=features, ec_transfer_params=ec))


def values(encoded: Encoded) -> torch.Tensor:
    layout = encoded.encoded
    return encoded.embeddings.view(getattr(torch, layout.dtype))


def test_text_only_passes_through(encoder: Encoder) -> None:
    encoded = encode(encoder, [])
    assert encoded.embeddings.numel() == 0
    assert encoded.encoded.items == []


def test_rows_equal_those_of_transformers_on_the_normalised_picture(encoder: Encoder) -> None:
    item = picture(0)
    processor = AutoImageProcessor.from_pretrained(load_settings().model)
    pixels = item["pixel_values"].data
    normalised = (torch.from_numpy(np.array(pixels)).float() / 255 - processor.image_mean[0]) / processor.image_std[0]
    expected = encoder._model.get_image_features(normalised, torch.tensor([[1, 4, 6]]), return_dict=True)
    encoded = encode(encoder, [("a", item, None, 6)])
    got = values(encoded).view(1 + encoded.encoded.deepstack, 6, encoded.encoded.hidden)
    torch.testing.assert_close(got[0], expected.pooler_output[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], expected.deepstack_features[0][0], rtol=1e-4, atol=1e-4)
    assert encoded.encoded.items[0].metadata == {"image_grid_thw": [1, 4, 6]}


def test_float_pixels_are_taken_as_normalised_already(encoder: Encoder) -> None:
    item = picture(0)
    raw = np.array(item["pixel_values"].data)
    floats = item | {"pixel_values": Field(((raw / np.float32(255) - 0.5) / 0.5).astype(np.float32))}
    first, second = encode(encoder, [("a", item, None, 6)]), encode(encoder, [("b", floats, None, 6)])
    torch.testing.assert_close(values(first), values(second), rtol=1e-4, atol=1e-4)


def test_a_count_that_the_encoder_does_not_take_changes_nothing(encoder: Encoder) -> None:
    counted = picture(1) | {"num_patches": Field(np.array(24), "batched", {"keep_on_cpu": True})}
    encode(encoder, [("a", picture(1), None, 6), ("b", counted, None, 6)])
    assert (encoder.cache.hits, encoder.cache.misses) == (1, 1)


@pytest.mark.parametrize("data", [np.zeros(24, np.float32), np.zeros(1000, np.int64), None, [np.zeros(2, np.int64)]])
def test_anything_else_that_the_encoder_does_not_take_is_refused(encoder: Encoder, data: Any) -> None:
    with pytest.raises(InvalidRequest, match="mask must be an integer tensor"):
        encode(encoder, [("a", picture(1) | {"mask": Field(data)}, None, 6)])


def test_equal_pictures_run_the_tower_once_whatever_their_names(encoder: Encoder) -> None:
    encoded = encode(encoder, [("a", picture(1), None, 6), ("b", picture(1), None, 6), ("c", picture(2), None, 6)])
    assert (encoder.cache.hits, encoder.cache.misses) == (1, 2)
    digests = [item.digest for item in encoded.encoded.items]
    assert digests[0] == digests[1] != digests[2]
    assert all(len(bytes.fromhex(digest)) == 32 for digest in digests), "a key of full width"


def test_same_bytes_with_another_grid_are_another_picture(encoder: Encoder) -> None:
    tall, wide = picture(1, 6, 4), picture(1, 4, 6)
    encoded = encode(encoder, [("a", tall, None, 6), ("a2", wide, None, 6)])
    assert encoded.encoded.items[0].digest != encoded.encoded.items[1].digest


def test_known_name_without_data_is_served_from_the_cache(encoder: Encoder) -> None:
    first = encode(encoder, [("a", picture(1), None, 6)])
    again = encode(encoder, [("a", None, None, 6)])
    assert torch.equal(first.embeddings, again.embeddings)


def test_unknown_name_without_data_asks_to_send_it_again(encoder: Encoder) -> None:
    with pytest.raises(InvalidRequest, match="send it again"):
        encode(encoder, [("never seen", None, None, 6)])


def test_evicted_item_is_refused_and_encoded_again_when_sent(encoder: Encoder) -> None:
    first = encode(encoder, [("a", picture(1), None, 6)])
    encoder.cache.max_bytes = first.embeddings.numel()  # room for one
    encode(encoder, [("b", picture(2), None, 6)])
    with pytest.raises(InvalidRequest, match="'a' is not held"):
        encode(encoder, [("a", None, None, 6)])
    assert torch.equal(encode(encoder, [("a", picture(1), None, 6)]).embeddings, first.embeddings)
    assert encoder.cache.num_bytes <= encoder.cache.max_bytes


def test_name_seen_with_two_pictures_never_hits_without_data(encoder: Encoder) -> None:
    first = encode(encoder, [("shared", picture(1), None, 6)])
    second = encode(encoder, [("shared", picture(2), None, 6)])
    assert not torch.equal(first.embeddings, second.embeddings)
    with pytest.raises(InvalidRequest, match="send it again"):
        encode(encoder, [("shared", None, None, 6)])


def test_metadata_with_announced_parameters_gives_the_announced_rows(encoder: Encoder) -> None:
    item = picture(3)
    first = encode(encoder, [("a", item, metadata_of(item), 6)])
    params = first.encoded.ec_transfer_params
    assert params is not None
    entry = params["ec_items"][0]
    assert entry.keys() >= {"mm_hash", "peer_host", "peer_port", "size_bytes", "shape", "dtype"}
    assert entry["size_bytes"] == first.embeddings.numel()
    nameless = {"ec_items": [{key: value for key, value in entry.items() if key != "mm_hash"}]}
    for form in (params, nameless, {"a": entry}):
        again = encode(encoder, [("a", None, metadata_of(item), 6)], ec=form)
        assert torch.equal(again.embeddings, first.embeddings)
        assert again.encoded.ec_transfer_params is None


def test_coupled_requests_announce_nothing(encoder: Encoder) -> None:
    feature = FeatureItem(modality="image", mm_hash="a", placeholder={"offset": 0, "length": 6})  # type: ignore[arg-type]
    derender = DerenderContext(kind="chat", id="r", created=0, model="m", stream=False)
    context = RequestContext(id="r", features=[feature], derender=derender)
    encoded = encoder.encode(*tensors.concatenate([encode_item(picture(3)), b""]), context)
    assert encoded.encoded.ec_transfer_params is None


def test_metadata_alone_is_refused(encoder: Encoder) -> None:
    item = picture(3)
    encode(encoder, [("a", item, None, 6)])
    with pytest.raises(InvalidRequest, match="requires ec_transfer_params"):
        encode(encoder, [("a", None, metadata_of(item), 6)])


def test_metadata_that_contradicts_the_rows_is_refused(encoder: Encoder) -> None:
    item = picture(3)
    params = encode(encoder, [("a", item, None, 6)]).encoded.ec_transfer_params
    with pytest.raises(InvalidRequest, match="image_grid_thw"):
        encode(encoder, [("a", None, metadata_of(picture(3, 6, 4)), 6)], ec=params)


@pytest.mark.parametrize(
    "data", [np.array([1.0, np.nan, 6.0]), np.array([1, np.inf, 6], np.float32), np.zeros(10_000, np.int64), 5, [GRID], None]
)
def test_metadata_that_are_no_small_integers_are_refused(encoder: Encoder, data: Any) -> None:
    item = picture(3)
    params = encode(encoder, [("a", item, None, 6)]).encoded.ec_transfer_params
    with pytest.raises(InvalidRequest, match=r"features\.image\.0: image_grid_thw must be an integer tensor"):
        encode(encoder, [("a", None, {"image_grid_thw": Field(data)}, 6)], ec=params)


def test_parameters_for_an_unknown_item_name_it(encoder: Encoder) -> None:
    item = picture(3)
    params = {"ec_items": [{"mm_hash": "other", "peer_host": "127.0.0.1"}]}
    with pytest.raises(InvalidRequest, match="'mine'"):
        encode(encoder, [("mine", None, metadata_of(item), 6)], ec=params)


def test_clients_labels_of_the_fields_change_nothing(encoder: Encoder) -> None:
    item = picture(4)
    labelled = {
        "pixel_values": Field(item["pixel_values"].data, "batched", {"keep_on_cpu": True}),
        "image_grid_thw": Field(item["image_grid_thw"].data, "shared", {"batch_size": 7, "keep_on_cpu": False}),
    }
    first, second = encode(encoder, [("a", item, None, 6)]), encode(encoder, [("b", labelled, None, 6)])
    assert second.encoded.items[0].metadata == {"image_grid_thw": [1, 4, 6]}
    assert first.encoded.items[0].digest == second.encoded.items[0].digest


def test_salts_keep_clients_apart(encoder: Encoder) -> None:
    def salted(salt: str, data: bytes) -> Encoded:
        feature = FeatureItem(modality="image", mm_hash="same", placeholder={"offset": 0, "length": 6})  # type: ignore[arg-type]
        return encoder.encode(*tensors.concatenate([data, b""]), RequestContext(id="r", features=[feature], cache_salt=salt))

    data = encode_item(picture(5))
    assert salted("mine", data).encoded.items[0].digest != salted("yours", data).encoded.items[0].digest
    with pytest.raises(InvalidRequest, match="send it again"):
        salted("a third", b"")


def test_rows_announced_by_another_server_are_refused(encoder: Encoder) -> None:
    item = picture(3)
    params = encode(encoder, [("a", item, None, 6)]).encoded.ec_transfer_params
    assert params is not None
    params["ec_items"][0]["peer_host"] = "192.0.2.7"
    with pytest.raises(InvalidRequest, match=r"192\.0\.2\.7"):
        encode(encoder, [("a", None, metadata_of(item), 6)], ec=params)


def grid(*sides: int) -> Field:
    return Field(np.array(sides), "batched", {"keep_on_cpu": True})


HOSTILE: dict[str, Any] = {
    "grid for more patches than there are": picture(0) | {"image_grid_thw": grid(1, 132, 132)},
    "grid for fewer patches": picture(0) | {"image_grid_thw": grid(1, 2, 2)},
    "negative grid": picture(0) | {"image_grid_thw": grid(1, -4, -6)},
    "zero grid": picture(0) | {"image_grid_thw": grid(1, 0, 6)},
    "grid whose product overflows": picture(0) | {"image_grid_thw": grid(1, 2**40, 2**40)},
    "odd grid": picture(0, 3, 8),
    "two frames": picture(0) | {"image_grid_thw": grid(2, 2, 6)},
    "grid of floats": picture(0) | {"image_grid_thw": Field(np.array([1.0, 4.0, 6.0]))},
    "grid in a batch": picture(0) | {"image_grid_thw": Field(np.array([[1, 4, 6]]))},
    "grid of two": picture(0) | {"image_grid_thw": grid(4, 6)},
    "no grid": {"pixel_values": picture(0)["pixel_values"]},
    "no pixels": {"image_grid_thw": grid(1, 4, 6)},
    "pixels as a number": picture(0) | {"pixel_values": Field(5)},
    "pixels of another patch size": picture(0) | {"pixel_values": Field(np.zeros((24, WIDTH - 1), np.uint8))},
    "pixels as int64": picture(0) | {"pixel_values": Field(np.zeros((24, WIDTH), np.int64))},
    "NaN pixels": picture(0) | {"pixel_values": Field(np.full((24, WIDTH), np.nan, np.float32))},
    "metadata as large as a picture": picture(0) | {"image_grid_thw": Field(np.zeros(10_000, np.int64))},
    "empty pixels": picture(0) | {"pixel_values": Field(np.zeros((0, WIDTH), np.uint8))},
    "unknown field": picture(0) | {"output_attentions": Field(1)},
    "not MessagePack": b"\xc1garbage",
    "a pickle": b"\x80\x04\x95\x10",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_item_is_refused_and_the_next_request_works(encoder: Encoder, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"features\.image\.0"):
        encode(encoder, [("x", HOSTILE[name], None, 6)])
    assert encode(encoder, [("y", picture(9), None, 6)]).encoded.items[0].rows == 6


def test_placeholder_of_another_length_names_the_item_and_both_numbers(encoder: Encoder) -> None:
    with pytest.raises(InvalidRequest, match=r"features\.image\.1: the placeholder reserves 7 tokens, the item has 6 rows"):
        encode(encoder, [("a", picture(1), None, 6), ("b", picture(2), None, 7)])
    assert encoder.cache.misses == 1, "the tower ran for an item that does not fit"
    assert encode(encoder, [("a", picture(1), None, 6), ("b", picture(2), None, 6)]).encoded.items[1].rows == 6


@pytest.mark.parametrize("offsets", [[0, 5], [0, 5, 3, 10], [1, 10, 10], [0, 10, 99], [0, 4, 10, 10, 10]])
def test_offsets_that_do_not_fit_are_refused(encoder: Encoder, offsets: list[int]) -> None:
    feature = FeatureItem(modality="image", mm_hash="a", placeholder={"offset": 0, "length": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="mm_offsets"):
        encoder.encode(np.zeros(10, np.uint8), np.array(offsets), RequestContext(id="r", features=[feature]))


def test_other_modalities_are_refused(encoder: Encoder) -> None:
    feature = FeatureItem(modality="audio", mm_hash="a", placeholder={"offset": 0, "length": 1})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="audio"):
        encoder.encode(np.zeros(4, np.uint8), np.array([0, 4, 4]), RequestContext(id="r", features=[feature]))


# Videos


def test_rows_of_a_video_equal_those_of_transformers(encoder: Encoder) -> None:
    item = film(0)
    pixels = torch.from_numpy(np.array(item["pixel_values_videos"].data)).float()
    processor = AutoImageProcessor.from_pretrained(load_settings().model)
    normalised = (pixels / 255 - processor.image_mean[0]) / processor.image_std[0]
    expected = encoder._model.get_video_features(normalised, torch.tensor([[3, 4, 6]]), return_dict=True)
    encoded = encode(encoder, [("video", item, None, 18)])
    got = values(encoded).view(1 + encoded.encoded.deepstack, 18, encoded.encoded.hidden)
    torch.testing.assert_close(got[0], expected.pooler_output[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], expected.deepstack_features[0][0], rtol=1e-4, atol=1e-4)
    assert encoded.encoded.items[0].modality == "video"
    assert encoded.encoded.items[0].metadata == {"video_grid_thw": [3, 4, 6]}


def test_a_video_and_a_picture_of_the_same_patches_are_two_items(encoder: Encoder) -> None:
    still = film(1, frames=1)
    picture = {"pixel_values": still["pixel_values_videos"], "image_grid_thw": still["video_grid_thw"]}
    encoded = encode(encoder, [("video", still, None, 6), ("a", picture, None, 6)])
    assert encoded.encoded.items[0].digest != encoded.encoded.items[1].digest


def test_a_name_of_a_picture_does_not_stand_for_a_video(encoder: Encoder) -> None:
    context = RequestContext(
        id="r",
        features=[FeatureItem(modality="video", mm_hash="a", placeholder={"offset": 1, "length": 6})],  # type: ignore[arg-type]
    )
    encode(encoder, [("a", picture(1), None, 6)])
    with pytest.raises(InvalidRequest, match="send it again"):
        encoder.encode(*tensors.concatenate([b"", b""]), context)


def test_a_video_without_data_is_served_by_its_name_with_its_metadata(encoder: Encoder) -> None:
    item = film(2)
    first = encode(encoder, [("video", item, None, 18)])
    again = encode(encoder, [("video", None, metadata_of(item), 18)], ec={"ec_items": [{"mm_hash": "video"}]})
    assert torch.equal(first.embeddings, again.embeddings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"video_grid_thw": Field(np.array([2, 4, 6]))}, "has shape"),
        ({"video_grid_thw": Field(np.array([0, 4, 6]))}, "is not"),
        ({"video_grid_thw": Field(np.array([-3, -4, 6]))}, "is not"),
        ({"video_grid_thw": Field(np.array([5000, 4, 6]))}, "is not"),
        ({"video_grid_thw": Field(np.array([3, 3, 8]))}, "is not"),
        ({"video_grid_thw": Field(np.array([[3, 4, 6]]))}, "int64 tensor of shape"),
        ({"video_grid_thw": Field(None)}, "int64 tensor of shape|must be an integer tensor"),
        ({"pixel_values_videos": Field(None)}, "pixel_values_videos must be a tensor"),
        ({"pixel_values_videos": Field(np.zeros((72, WIDTH), np.int64))}, "pixel_values_videos is int64"),
        ({"pixel_values_videos": Field(np.full((72, WIDTH), np.nan, np.float32))}, "not finite"),
        ({"pixel_values_videos": Field(np.zeros((0, WIDTH), np.uint8))}, "is empty"),
        ({"timestamps": Field([0.5] * 5000)}, "timestamps must be"),
        ({"timestamps": Field([np.zeros(3, np.int64)])}, "timestamps must be"),
    ],
)
def test_a_video_that_does_not_fit_in_every_size_is_refused(encoder: Encoder, changes: Item, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        encode(encoder, [("a", picture(1), None, 6), ("video", film(3) | changes, None, 18)])
    assert caught.value.param == "features.video.0"


def test_a_placeholder_of_another_length_than_the_videos_is_refused(encoder: Encoder) -> None:
    with pytest.raises(InvalidRequest, match="reserves 17 tokens, the item has 18 rows"):
        encode(encoder, [("video", film(4), None, 17)])


def test_a_placeholder_of_a_video_need_not_say_which_of_its_tokens_take_rows(encoder: Encoder) -> None:
    assert encode(encoder, [("video", film(4), None, 30)]).encoded.items[0].rows == 18


def test_a_picture_with_the_fields_of_a_video_is_refused(encoder: Encoder) -> None:
    with pytest.raises(InvalidRequest, match="pixel_values must be a tensor"):
        encode(encoder, [("a", film(5), None, 18)])
