"""Chooses the next token of every sequence of a batch.

Order of operations, as in the reference: penalties, logit bias and forbidden tokens, temperature, min_p, top_k, top_p.
Logprobs are those of the model's own logits, before any of it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.prefill_decode.sequence import Sequence as Choice
from triton_renderer.protocol.generate import GenerateLogprob, GenerateTokenLogprob

FORBIDDEN = float("-inf")


@dataclass(frozen=True)
class Sampled:
    """One entry a sequence of the batch. Where there is an error, the token means nothing."""

    token_ids: list[int]
    logprobs: list[GenerateTokenLogprob | None]
    errors: list[RendererError | None]


def sample(logits: torch.Tensor, choices: Sequence[Choice]) -> Sampled:
    """The next token of each choice. logits: [batch, vocabulary], any float dtype; not modified."""
    logits = logits.float()
    shaped = _shape(logits, choices)
    best, token_ids = shaped.max(dim=-1)
    errors: list[RendererError | None] = [None] * len(choices)
    if not bool(best.isfinite().all()):
        # One row's fault must not be the batch's: it is taken out, so that what follows sees numbers only.
        for row in (~best.isfinite()).nonzero().flatten().tolist():
            errors[row] = _no_token(logits[row])
        shaped = torch.where(best.isfinite().unsqueeze(1), shaped, 0.0)
    drawn = [row for row, choice in enumerate(choices) if not choice.request.context.sampling_params.is_greedy]
    if drawn:
        token_ids[drawn] = _draw(shaped[drawn], [choices[row] for row in drawn])
    ids: list[int] = token_ids.tolist()
    return Sampled(ids, _logprobs(logits, ids, choices), errors)


def _no_token(logits: torch.Tensor) -> RendererError:
    """Why nothing can be chosen from one row. logits: the model's own, [vocabulary]."""
    if bool(logits.isfinite().all()):
        return InvalidRequest("the sampling parameters leave no token to choose from", "sampling_params")
    return RendererError("the model's output is not finite")


def _shape(logits: torch.Tensor, choices: Sequence[Choice]) -> torch.Tensor:
    """Penalties, bias and forbidden tokens, for the rows that ask for any; a copy where one does."""
    copied = False
    for row, choice in enumerate(choices):
        params = choice.request.context.sampling_params
        ending = choice.stop.ending_ids if len(choice.output_ids) < params.min_tokens else ()
        penalized = params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty
        if not (penalized or params.logit_bias or params.allowed_token_ids or ending):
            continue
        if not copied:
            logits, copied = logits.clone(), True
        if penalized:
            _penalize(logits[row], choice)
        if params.logit_bias:
            logits[row, list(params.logit_bias)] += logits.new_tensor(list(params.logit_bias.values()))
        if params.allowed_token_ids:
            kept = logits[row, params.allowed_token_ids]
            logits[row] = FORBIDDEN
            logits[row, params.allowed_token_ids] = kept
        if ending:
            logits[row, list(ending)] = FORBIDDEN
    return logits


def _penalize(logits: torch.Tensor, choice: Choice) -> None:
    """Changes one row, [vocabulary], in place.

    repetition_penalty looks at prompt and output (the formula is CTRL's), the other two at the output (OpenAI's).
    """
    params = choice.request.context.sampling_params
    output = torch.tensor(choice.output_ids, dtype=torch.long, device=logits.device)
    if params.repetition_penalty != 1:
        seen = torch.cat([torch.from_numpy(choice.request.prompt.token_ids).to(logits.device), output]).unique()  # type: ignore[no-untyped-call]
        values = logits[seen]
        logits[seen] = torch.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if len(output):
        ids, counts = output.unique(return_counts=True)  # type: ignore[no-untyped-call]
        logits[ids] -= params.frequency_penalty * counts + params.presence_penalty


def _draw(logits: torch.Tensor, choices: Sequence[Choice]) -> torch.Tensor:
    """One random token a row, [rows] int64, each from its own generator: by inverting the cumulated distribution."""
    params = [choice.request.context.sampling_params for choice in choices]

    def column(values: Iterable[float]) -> torch.Tensor:
        return logits.new_tensor(list(values)).unsqueeze(1)

    ordered, order = (logits / column(p.temperature for p in params)).sort(dim=-1, descending=True)
    probabilities = ordered.softmax(dim=-1)
    keep = probabilities >= column(p.min_p for p in params) * probabilities[:, :1]
    ranks = torch.arange(logits.shape[1], device=logits.device)
    keep &= ranks < column(p.top_k if p.top_k > 0 else logits.shape[1] for p in params)
    kept = probabilities * keep
    kept /= kept.sum(dim=-1, keepdim=True)
    # A token stays while those before it have not reached top_p: the first one always does.
    under = kept.cumsum(dim=-1) - kept < column(p.top_p for p in params)
    under[:, 0] = True  # also where top_p is too small for float32
    kept *= under
    cumulated = kept.double().cumsum(dim=-1)
    uniform = torch.tensor([torch.rand((), generator=choice.random, dtype=torch.float64) for choice in choices]).to(
        logits.device
    )
    drawn = torch.searchsorted(cumulated, (uniform * cumulated[:, -1]).unsqueeze(1), right=True)
    # Rounding may end one step behind the last token that is kept.
    last = ((kept > 0).sum(dim=-1, keepdim=True) - 1).clamp(min=0)
    return order.gather(1, torch.minimum(drawn, last)).squeeze(1)


def _logprobs(logits: torch.Tensor, token_ids: list[int], choices: Sequence[Choice]) -> list[GenerateTokenLogprob | None]:
    answers: list[GenerateTokenLogprob | None] = [None] * len(choices)
    for row, (token_id, choice) in enumerate(zip(token_ids, choices, strict=True)):
        count = choice.request.context.sampling_params.logprobs
        if count is None:
            continue
        logprobs = logits[row].log_softmax(dim=-1)
        own = float(logprobs[token_id])
        rank = int((logprobs > own).sum()) + 1
        sampled = GenerateLogprob(token_id=token_id, logprob=own, rank=rank)
        best = logprobs.topk(count) if count else None
        others = _ranked(best.values.tolist(), best.indices.tolist()) if best else []
        answers[row] = GenerateTokenLogprob(
            token_id=token_id,
            logprob=own,
            rank=rank,
            top_logprobs=[sampled, *(other for other in others if other.token_id != token_id)],
        )
    return answers


def _ranked(values: Iterable[float], ids: Iterable[int]) -> list[GenerateLogprob]:
    pairs = enumerate(zip(values, ids, strict=True), start=1)
    return [GenerateLogprob(token_id=token_id, logprob=value, rank=rank) for rank, (value, token_id) in pairs]
