"""Chooses the next token of every sequence of a batch.

Order of operations, as in the reference: forbidden tokens and logit bias, penalties, temperature, min_p, top_k, top_p.
A structured output's grammar has the last word before that. Logprobs are those of the model's own logits, before any of it.
Each operation is done for all rows that ask for it at once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xgrammar

from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.prefill_decode.sequence import Sequence as Choice
from triton_renderer.prefill_decode.structured import fill_bitmask
from triton_renderer.protocol.generate import GenerateLogprob, GenerateTokenLogprob
from triton_renderer.protocol.sampling import SamplingParams
from triton_renderer.transfer import to_device

FORBIDDEN = float("-inf")
NUM_CANDIDATES = 1024
"""The best tokens of a row, among which top_k, top_p and min_p mostly find all they leave: cheaper than to sort them all."""
Rows = Sequence[tuple[int, Choice]]


@dataclass(frozen=True)
class Sampled:
    """One entry a sequence of the batch. Where there is an error, the token means nothing."""

    token_ids: list[int]
    logprobs: list[GenerateTokenLogprob | None]
    errors: list[RendererError | None]


def sample(logits: torch.Tensor, choices: Sequence[Choice]) -> Sampled:
    """The next token of each choice. logits: [batch, vocabulary], any float dtype; not modified."""
    errors: list[RendererError | None] = [None] * len(choices)
    rows = list(enumerate(choices))
    shaped = _shape(logits, [(row, choice) for row, choice in rows if choice.is_shaped])
    best, token_ids = shaped.max(dim=-1)
    if not bool(best.isfinite().all()):
        # One row's fault must not be the batch's: it is taken out, so that what follows sees numbers only.
        for row in (~best.isfinite()).nonzero().flatten().tolist():
            errors[row] = _no_token(logits[row])
        shaped = torch.where(best.isfinite().unsqueeze(1), shaped, 0.0)
    drawn = [(row, choice) for row, choice in rows if not choice.params.is_greedy]
    if drawn:
        token_ids[_places((row for row, _ in drawn), logits.device)] = _draw(shaped, drawn)
    ids: list[int] = token_ids.tolist()
    asked = [(row, choice) for row, choice in rows if choice.params.logprobs is not None]
    return Sampled(ids, _logprobs(logits, ids, asked) if asked else [None] * len(ids), errors)


def _no_token(logits: torch.Tensor) -> RendererError:
    """Why nothing can be chosen from one row. logits: the model's own, [vocabulary]."""
    if bool(logits.isfinite().all()):
        return InvalidRequest("the sampling parameters leave no token to choose from", "sampling_params")
    return RendererError("the model's output is not finite")


def _shape(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """What the parameters of `rows` do to them: float32 [batch, vocabulary], or `logits` itself where there is nothing."""
    if not rows:
        return logits
    shaped = logits.to(torch.float32, copy=True)
    flat, width = shaped.view(-1), shaped.shape[1]
    bitmask, masked, only_endings = _bitmask(width, rows)
    forbidden: list[int] = []
    for row, choice in rows:
        ids = choice.shaping.forbidden(choice.output_ids)
        # An output that its grammar has brought to an end ends, whatever min_tokens says.
        if choice.shaping.ends_too_early(len(choice.output_ids)) and row not in only_endings:
            ids = ids + choice.shaping.ending_ids
        forbidden += [row * width + token_id for token_id in ids]
    if forbidden:
        flat[_indices(np.array(forbidden, np.int64), logits.device)] = FORBIDDEN
    _add_bias(flat, width, [(row, choice) for row, choice in rows if len(choice.shaping.bias_ids)])
    _penalize(flat, width, [(row, choice) for row, choice in rows if choice.shaping.counts is not None])
    if masked:
        xgrammar.apply_token_bitmask_inplace(shaped, to_device(bitmask, shaped.device), vocab_size=width, indices=masked)
    return shaped


def _bitmask(width: int, rows: Rows) -> tuple[torch.Tensor, list[int], set[int]]:
    """Which tokens grammars and allowed_token_ids let through, the rows that have either, and those that must end.

    The mask is [batch up to the last such row, words of 32 tokens] int32; other rows of it mean nothing.
    """
    constraints = [(row, choice.constraint) for row, choice in rows if choice.constraint is not None]
    holding = {row: constraint for row, constraint in constraints if constraint.holds}
    allowing = [(row, choice.shaping.allowed) for row, choice in rows if choice.shaping.allowed is not None]
    masked = sorted(holding.keys() | {row for row, _ in allowing})
    bitmask = torch.full((masked[-1] + 1 if masked else 0, -(-width // 32)), -1, dtype=torch.int32)
    if holding:
        fill_bitmask(bitmask, list(holding.values()), list(holding))
    early = [(row, choice) for row, choice in rows if row in holding and choice.shaping.ends_too_early(len(choice.output_ids))]
    only_endings = {row for row, choice in early if choice.shaping.leaves_only_endings(bitmask[row])}
    for row, allowed in allowing:
        bitmask[row] &= allowed
    return bitmask, masked, only_endings


def _add_bias(flat: torch.Tensor, width: int, rows: Rows) -> None:
    """flat: the batch's logits, [batch · width], changed in place."""
    if rows:
        ids = np.concatenate([row * width + choice.shaping.bias_ids for row, choice in rows])
        flat[_indices(ids, flat.device)] += _values(np.concatenate([choice.shaping.biases for _, choice in rows]), flat)


def _penalize(flat: torch.Tensor, width: int, rows: Rows) -> None:
    """flat: the batch's logits, [batch · width], changed in place.

    repetition_penalty looks at prompt and output (the formula is CTRL's), the other two at the output (OpenAI's).
    """
    counted = [(row, choice.shaping, choice.shaping.counts) for row, choice in rows if choice.shaping.counts is not None]
    if not counted:
        return
    lengths = [len(counts.ids) for _, _, counts in counted]

    def spread(values: Iterable[float]) -> torch.Tensor:
        return _values(np.repeat(np.fromiter(values, np.float32), lengths), flat)

    ids = _indices(np.concatenate([row * width + counts.ids for row, _, counts in counted]), flat.device)
    counts = _values(np.concatenate([counts.counts for _, _, counts in counted]), flat)
    repetition = spread(shaping.repetition_penalty for _, shaping, _ in counted)
    values = flat[ids]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread(shaping.frequency_penalty for _, shaping, _ in counted) * counts
    values -= spread(shaping.presence_penalty for _, shaping, _ in counted) * (counts > 0)
    flat[ids] = values


def _indices(ids: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]", device: torch.device) -> torch.Tensor:
    return to_device(torch.from_numpy(ids), device)


def _places(rows: Iterable[int], device: torch.device) -> torch.Tensor:
    return to_device(torch.tensor(list(rows), dtype=torch.int64), device)


def _values(values: "np.ndarray[tuple[int, ...], np.dtype[Any]]", like: torch.Tensor) -> torch.Tensor:
    return to_device(torch.from_numpy(values).to(like.dtype), like.device)


def _draw(logits: torch.Tensor, rows: Rows) -> torch.Tensor:
    """One random token for each of `rows`, [rows] int64, each from its own generator. logits: [batch, vocabulary].

    Nothing that is done to a row depends on the others.
    """
    params = [choice.params for _, choice in rows]
    uniform = torch.tensor([torch.rand((), generator=choice.random, dtype=torch.float64) for _, choice in rows])
    uniform = to_device(uniform, logits.device).unsqueeze(1)
    scaled = logits[_places((row for row, _ in rows), logits.device)].float() / _column(logits, (p.temperature for p in params))
    drawn = torch.empty(len(rows), dtype=torch.int64, device=logits.device)
    free = [index for index, p in enumerate(params) if not _is_filtered(p)]
    if free:
        places = _places(free, logits.device)
        drawn[places] = _invert(scaled[places].softmax(dim=-1), uniform[places])
    filtered = [index for index, p in enumerate(params) if _is_filtered(p)]
    if filtered:
        places = _places(filtered, logits.device)
        drawn[places] = _draw_filtered(scaled[places], uniform[places], [params[index] for index in filtered])
    return drawn


def _is_filtered(params: SamplingParams) -> bool:
    return params.top_p < 1 or params.top_k > 0 or params.min_p > 0


def _draw_filtered(logits: torch.Tensor, uniform: torch.Tensor, params: Sequence[SamplingParams]) -> torch.Tensor:
    """logits: [rows, vocabulary], scaled by temperature; uniform: [rows, 1]. Returns [rows] int64."""
    total = logits.logsumexp(dim=-1, keepdim=True)
    width = logits.shape[1]
    best = logits.topk(min(NUM_CANDIDATES, width), dim=-1)
    share = (best.values.logsumexp(dim=-1, keepdim=True) - total).exp()
    kept, has_more = _filter(best.values.softmax(dim=-1) * share, params, width)
    drawn = best.indices.gather(1, _invert(kept, uniform).unsqueeze(1)).squeeze(1)
    wide = has_more.nonzero().flatten().tolist()
    if wide:
        ordered, order = logits[wide].sort(dim=-1, descending=True)
        kept, _ = _filter(ordered.softmax(dim=-1), [params[row] for row in wide], width)
        drawn[wide] = order.gather(1, _invert(kept, uniform[wide]).unsqueeze(1)).squeeze(1)
    return drawn


def _filter(probabilities: torch.Tensor, params: Sequence[SamplingParams], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The probabilities that min_p, top_k and then top_p leave, the others zero; and where they leave more than is here.

    probabilities: [rows, n], the best ones of `width`, falling. Returns [rows, n] and [rows] bool.
    """
    count = probabilities.shape[1]
    keep = probabilities >= _column(probabilities, (p.min_p for p in params)) * probabilities[:, :1]
    ranks = torch.arange(count, device=probabilities.device)
    keep &= ranks < _column(probabilities, (p.top_k if p.top_k > 0 else width for p in params))
    kept = probabilities * keep
    # What top_p is a part of: all that min_p and top_k leave; without them that is 1, however many are looked at.
    only_top_p = _column(probabilities, (p.min_p == 0 and p.top_k <= 0 for p in params)) > 0
    whole = torch.where(only_top_p, 1.0, kept.sum(dim=-1, keepdim=True))
    # A token stays while those before it have not reached top_p: the first one always does.
    under = kept.cumsum(dim=-1) - kept < _column(probabilities, (p.top_p for p in params)) * whole
    under[:, 0] = True  # also where top_p is too small for float32
    if count == width:
        return kept * under, torch.zeros(len(params), dtype=torch.bool, device=probabilities.device)
    goes_on = _column(probabilities, (p.top_k <= 0 or p.top_k > count for p in params)) > 0
    return kept * under, (torch.where(only_top_p, under[:, -1:], keep[:, -1:]) & goes_on).squeeze(1)


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """One index a row, [rows], by inverting the cumulated weights. weights: [rows, n]; uniform: [rows, 1] in [0, 1)."""
    cumulated = weights.double().cumsum(dim=-1)
    drawn = torch.searchsorted(cumulated, uniform * cumulated[:, -1:], right=True)
    # Rounding may end behind the last one that has any weight.
    last = (weights > 0).long().cumsum(dim=-1).argmax(dim=-1, keepdim=True)
    return torch.minimum(drawn, last).squeeze(1)


def _column(like: torch.Tensor, values: Iterable[float]) -> torch.Tensor:
    return to_device(torch.tensor(list(values), dtype=torch.float32), like.device).unsqueeze(1)


def _logprobs(logits: torch.Tensor, token_ids: list[int], rows: Rows) -> list[GenerateTokenLogprob | None]:
    answers: list[GenerateTokenLogprob | None] = [None] * len(token_ids)
    tokens = [token_ids[row] for row, _ in rows]
    counts = [choice.params.logprobs or 0 for _, choice in rows]
    ranked = rank(logits[_places((row for row, _ in rows), logits.device)], tokens, max(counts))
    for (row, _), token_id, count, (own, best) in zip(rows, tokens, counts, ranked, strict=True):
        others = [other for other in best[:count] if other.token_id != token_id]
        answers[row] = GenerateTokenLogprob(token_id=token_id, logprob=own.logprob, rank=own.rank, top_logprobs=[own, *others])
    return answers


def rank(logits: torch.Tensor, token_ids: Sequence[int], count: int) -> list[tuple[GenerateLogprob, list[GenerateLogprob]]]:
    """For each row the logprob and rank of its token, and those of the `count` best ones. logits: [rows, vocabulary]."""
    logprobs = logits.float().log_softmax(dim=-1)
    own = logprobs.gather(1, _places(token_ids, logits.device).unsqueeze(1))
    ranks = ((logprobs > own).sum(dim=-1) + 1).tolist()
    best = logprobs.topk(count, dim=-1)
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        (
            GenerateLogprob(token_id=token_id, logprob=value, rank=place),
            [
                GenerateLogprob(token_id=other, logprob=logprob, rank=at)
                for at, (other, logprob) in enumerate(zip(*top, strict=True), start=1)
            ],
        )
        for token_id, value, place, top in zip(token_ids, own.flatten().tolist(), ranks, tops, strict=True)
    ]
