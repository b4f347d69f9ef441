"""The encode stage: multimodal items in, rows for the language model out.

Equal items run the tower once (`cache.EncoderCache`); an item without its data is served from that cache, or refused so
that its sender can send it again. It is never guessed, and never another picture's.
"""

import inspect
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import blake3
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel
from transformers.image_processing_base import ImageProcessingMixin
from transformers.video_processing_utils import BaseVideoProcessor

from triton_renderer import checkpoint, tensors, threads
from triton_renderer.encode.cache import EncoderCache, EncoderOutput
from triton_renderer.encode.items import OF_VIDEOS, PixelFormat, check_metadata, check_pixels, parse_item, tower_inputs
from triton_renderer.errors import InvalidRequest
from triton_renderer.packed_linear import pack_linears, pack_patches, replace_gelus
from triton_renderer.protocol.stages import EncodedItem, EncodedItems, FeatureForm, FeatureItem, RequestContext
from triton_renderer.settings import Settings
from triton_renderer.wire import Field, Item, encode_item

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoded:
    """The answer of the stage. `embeddings`: [bytes] uint8, on the model's device; see `tensors.py` for its layout."""

    embeddings: torch.Tensor
    encoded: EncodedItems


class Encoder:
    """The vision tower of one model and its cache. One call at a time; calls do not share state but the cache."""

    def __init__(self, model: PreTrainedModel, formats: dict[str, PixelFormat], settings: Settings) -> None:
        """`formats`: by modality, of those that the model takes."""
        self.cache = EncoderCache(settings.encoder_cache_bytes)
        self._model = model
        self._formats = formats
        self._towers = {modality: getattr(model, f"get_{modality}_features") for modality in formats}
        self._parameters = {
            modality: inspect.signature(tower).parameters.keys() - {"kwargs"} for modality, tower in self._towers.items()
        }
        self._fingerprint = checkpoint.fingerprint(model.config, model.dtype)
        self._peer = {"peer_host": settings.triton_host, "peer_port": settings.triton_grpc_port}

    @classmethod
    def load(cls, settings: Settings) -> "Encoder | TextOnlyEncoder":
        """Loads the tower's weights. Raises CheckpointError."""
        config = checkpoint.load_config(settings)
        if not checkpoint.has_encoder(config):
            log.info("%s takes text only: nothing to encode", settings.model)
            return TextOnlyEncoder()
        started = time.monotonic()
        model = checkpoint.load_part(settings, "encoder")
        processor, _ = ImageProcessingMixin.get_image_processor_dict(settings.model)
        weight_bytes = checkpoint.parameter_bytes(model)
        pack_linears(model)
        pack_patches(model)
        replace_gelus(model)
        log.info(
            "%.1f MiB of encoder weights loaded in %.1f s (%s); computing with %d threads",
            *(weight_bytes / 2**20, time.monotonic() - started, model.dtype, threads.take(weight_bytes, model.device)),
        )
        formats = {"image": PixelFormat.from_config(processor, config.vision_config)}
        if checkpoint.takes_videos(model):
            of_videos, _ = BaseVideoProcessor.get_video_processor_dict(settings.model)
            formats["video"] = PixelFormat.from_config(processor | of_videos, config.vision_config, **OF_VIDEOS)
        return cls(model, formats, settings)

    def encode(self, mm_data: npt.NDArray[np.uint8], mm_offsets: npt.NDArray[np.int64], context: RequestContext) -> Encoded:
        """Rows of all items of one request.

        mm_data, mm_offsets: as in `tensors.py`. Raises InvalidRequest, with the item in its param.
        """
        if not context.features and mm_data.size == 0:
            return NOTHING
        outputs = [self._output(*item, context) for item in _items(mm_data, mm_offsets, context)]
        for feature, output, where in zip(context.features, outputs, _places(context), strict=True):
            _check_length(feature, output.rows, where)
        features = [output.features for output in outputs]
        return Encoded(
            torch.cat([part.reshape(-1) for part in features]).view(torch.uint8),
            EncodedItems(
                dtype=str(features[0].dtype).removeprefix("torch."),
                hidden=features[0].shape[2],
                deepstack=features[0].shape[0] - 1,
                form=outputs[0].form,
                items=[_describe(*pair) for pair in zip(context.features, outputs, strict=True)],
                ec_transfer_params=self._announce(context, outputs, mm_offsets),
            ),
        )

    def _output(
        self, feature: FeatureItem, data: memoryview, metadata: memoryview, where: str, context: RequestContext
    ) -> EncoderOutput:
        if feature.modality not in self._formats:
            raise InvalidRequest(f"{where}: the modality {feature.modality!r} is not supported by this model", where)
        if data:
            return self._from_data(feature, parse_item(data, where), where, context)
        announced = self._announced(feature, context, where)
        if metadata and not announced:
            raise InvalidRequest(f"{where}: an item with metadata only requires ec_transfer_params", where)
        output = self._held(feature, announced, context)
        if output is None:
            raise InvalidRequest(
                f"{where}: the item with mm_hash {feature.mm_hash!r} is not held here: send it again with its kwargs_data",
                where,
            )
        if metadata:
            _check_metadata(parse_item(metadata, where), output, where)
        return output

    def _from_data(self, feature: FeatureItem, item: Item, where: str, context: RequestContext) -> EncoderOutput:
        rows = check_pixels(item, self._formats[feature.modality], where)
        # Another renderer may send counts along that this encoder does not ask for.
        item = {name: value for name, value in item.items() if name in self._parameters[feature.modality]}
        if rows is not None:
            # Before the tower runs: a wrong placeholder is the sender's mistake and must not cost it.
            _check_length(feature, rows, where)
        digest = self._digest(item, context.cache_salt)
        self.cache.name(_alias(feature, context), digest)
        output = self.cache.get(digest)
        if output is None:
            output = self._run_tower(digest, feature.modality, item)
            self.cache.put(output)
        return output

    @torch.inference_mode()
    def _run_tower(self, digest: str, modality: str, item: Item) -> EncoderOutput:
        inputs = tower_inputs(item, self._formats[modality], self._model.device)
        answer = self._towers[modality](**inputs, return_dict=True)
        sets = [answer.pooler_output, *(getattr(answer, "deepstack_features", None) or [])]
        features = torch.stack(
            [torch.cat(list(rows)) if isinstance(rows, list | tuple) else rows.flatten(0, -2) for rows in sets]
        )
        return EncoderOutput(digest, features.to(self._model.dtype).contiguous(), _metadata(item), _form(answer.pooler_output))

    def _digest(self, item: Item, salt: str | None) -> str:
        """Over the model, the client's salt and the item's tensors. How a client labels its fields changes nothing."""
        plain = encode_item({name: Field(value.data) for name, value in sorted(item.items())})
        hexadecimal: str = blake3.blake3(self._fingerprint + encode_salt(salt) + plain).hexdigest()
        return hexadecimal

    def _held(self, feature: FeatureItem, announced: dict[str, Any] | None, context: RequestContext) -> EncoderOutput | None:
        """An item without data: by the digest that this server announced, else by the client's name for it."""
        digest = (announced or {}).get("digest") or self.cache.resolve(_alias(feature, context))
        return self.cache.get(digest) if isinstance(digest, str) else None

    def _announced(self, feature: FeatureItem, context: RequestContext, where: str) -> dict[str, Any] | None:
        """The entry of `ec_transfer_params` for this item. Raises InvalidRequest where it names another server."""
        entry = _entry(feature, context)
        if entry is None:
            return None
        host, port = entry.get("peer_host"), entry.get("peer_port", self._peer["peer_port"])
        if host is not None and (host, port) != (self._peer["peer_host"], self._peer["peer_port"]):
            raise InvalidRequest(
                f"{where}: its rows are on {host}:{port}, and this server takes rows only from its own encode stage", where
            )
        return entry

    def _announce(
        self, context: RequestContext, outputs: list[EncoderOutput], offsets: npt.NDArray[np.int64]
    ) -> dict[str, Any] | None:
        """`ec_transfer_params` for the items that came with data: where, and what, to pull. A coupled answer has none."""
        if context.derender is not None:
            return None
        items = [
            {
                "mm_hash": feature.mm_hash,
                **self._peer,
                "size_bytes": output.num_bytes,
                "shape": list(output.features.shape),
                "dtype": str(output.features.dtype).removeprefix("torch."),
                "digest": output.digest,
            }
            for index, (feature, output) in enumerate(zip(context.features, outputs, strict=True))
            if offsets[2 * index + 1] > offsets[2 * index]
        ]
        return {"ec_items": items} if items else None


class TextOnlyEncoder:
    """The encode stage of a model without pictures: passes text through, refuses the rest."""

    cache = EncoderCache(0)

    def encode(self, mm_data: npt.NDArray[np.uint8], mm_offsets: npt.NDArray[np.int64], context: RequestContext) -> Encoded:
        """As `Encoder.encode`; raises InvalidRequest for any item."""
        if context.features:
            raise InvalidRequest("this model takes text only, no multimodal items", "features")
        return NOTHING


NOTHING = Encoded(torch.empty(0, dtype=torch.uint8), EncodedItems())


def _items(
    mm_data: npt.NDArray[np.uint8], mm_offsets: npt.NDArray[np.int64], context: RequestContext
) -> Iterator[tuple[FeatureItem, memoryview, memoryview, str]]:
    """Each item with its two slices of `mm_data`, and where it stands in the request."""
    try:
        slices = tensors.split(mm_data, mm_offsets)
    except ValueError as error:
        raise InvalidRequest(f"mm_offsets: {error}", "mm_offsets") from error
    if len(slices) != 2 * len(context.features):
        raise InvalidRequest(
            f"mm_offsets has {len(slices)} slices for {len(context.features)} features: two an item are expected", "mm_offsets"
        )
    yield from zip(context.features, slices[::2], slices[1::2], _places(context), strict=True)


def _places(context: RequestContext) -> list[str]:
    """Where each item stands in the request."""
    counts: Counter[str] = Counter()
    places = []
    for feature in context.features:
        places.append(f"features.{feature.modality}.{counts[feature.modality]}")
        counts[feature.modality] += 1
    return places


def _check_length(feature: FeatureItem, rows: int, where: str) -> None:
    """A dense placeholder has one token a row; of a sparse one, those marked in `is_embed`.

    A video's is never dense, and other renderers do not mark it: then prefill_decode counts, which has the tokens.
    """
    span = feature.placeholder
    if feature.modality == "video" and span.is_embed is None and span.length > rows:
        return
    reserved = sum(span.is_embed[1::2]) if span.is_embed else span.length
    if (span.is_embed and sum(span.is_embed) != span.length) or reserved != rows:
        raise InvalidRequest(f"{where}: the placeholder reserves {reserved} tokens, the item has {rows} rows", where)


def _form(rows: Any) -> FeatureForm:
    if isinstance(rows, list | tuple):
        return "list"
    return "items" if rows.ndim == 3 else "rows"


def _metadata(item: Item) -> dict[str, list[int]]:
    """The fields that the language model needs as well: grids and sizes, whatever the client says of them."""
    return {
        name: [int(number) for number in field.data.reshape(-1)]
        for name, field in item.items()
        if not name.startswith("pixel_values") and isinstance(field.data, np.ndarray)
    }


def _check_metadata(item: Item, output: EncoderOutput, where: str) -> None:
    """Raises InvalidRequest where the sender's metadata says something else than what the tower was run with."""
    check_metadata(item, where)
    sent = _metadata(item)
    for name, value in output.metadata.items():
        if sent.get(name, value) != value:
            raise InvalidRequest(f"{where}: {name} is {sent[name]}, the encoder output has {value}", where)


def _alias(feature: FeatureItem, context: RequestContext) -> str:
    """The client's name of an item, among those of the same salt and modality."""
    return f"{context.cache_salt or ''}\0{feature.modality}\0{feature.mm_hash}"


def encode_salt(salt: str | None) -> bytes:
    """`cache_salt` with its length in front, so that it cannot run into what follows."""
    data = (salt or "").encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4, "little") + data


def _describe(feature: FeatureItem, output: EncoderOutput) -> EncodedItem:
    return EncodedItem(
        modality=feature.modality,
        mm_hash=feature.mm_hash,
        digest=output.digest,
        rows=output.rows,
        placeholder=feature.placeholder,
        metadata=output.metadata,
    )


def _entry(feature: FeatureItem, context: RequestContext) -> dict[str, Any] | None:
    """The entry of `ec_transfer_params` for this item: by its mm_hash, else, for entries without one, by position.

    Both forms are taken: {"ec_items": [{"mm_hash", …}, …]} and {mm_hash: {…}}. Raises InvalidRequest for another shape.
    """
    params = context.ec_transfer_params
    if not params:
        return None
    entries: Any = params.get("ec_items", [{**entry, "mm_hash": name} for name, entry in _maps(params)])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidRequest("ec_transfer_params.ec_items must be a list of objects", "ec_transfer_params.ec_items")
    position = next(index for index, other in enumerate(context.features) if other is feature)
    for index, entry in enumerate(entries):
        if entry.get("mm_hash") == feature.mm_hash or (entry.get("mm_hash") is None and index == position):
            return dict(entry)
    raise InvalidRequest(f"ec_transfer_params names no item with mm_hash {feature.mm_hash!r}", "ec_transfer_params")


def _maps(params: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((name, entry) for name, entry in params.items() if isinstance(entry, dict))
