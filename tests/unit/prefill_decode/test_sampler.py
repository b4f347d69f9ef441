import math
from collections import Counter

import pytest
import torch

from tests.unit.prefill_decode.fakes import EOS, VOCAB_SIZE, NotingSink, make_request
from triton_renderer.errors import InvalidRequest, RendererError
from triton_renderer.prefill_decode.sampler import sample
from triton_renderer.prefill_decode.sequence import Sequence


def choice(**sampling: object) -> Sequence:
    return make_request(NotingSink(), **({"temperature": 1.0} | sampling)).sequences[0]


def logits_of(probabilities: dict[int, float]) -> torch.Tensor:
    logits = torch.full((1, VOCAB_SIZE), -30.0)
    for token, probability in probabilities.items():
        logits[0, token] = math.log(probability)
    return logits


def draws(logits: torch.Tensor, sequence: Sequence, count: int = 2000) -> Counter[int]:
    return Counter(sample(logits, [sequence]).token_ids[0] for _ in range(count))


def test_greedy_takes_the_most_likely() -> None:
    assert sample(logits_of({3: 0.4, 5: 0.6}), [choice(temperature=0)]).token_ids == [5]


def test_draws_follow_the_distribution() -> None:
    seen = draws(logits_of({3: 0.25, 5: 0.75}), choice(seed=1))
    assert set(seen) == {3, 5}
    assert 0.2 < seen[3] / 2000 < 0.3


def test_temperature_sharpens() -> None:
    seen = draws(logits_of({3: 0.25, 5: 0.75}), choice(seed=1, temperature=0.5))
    assert 0.07 < seen[3] / 2000 < 0.13  # 0.25² : 0.75² = 1 : 9


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        ({"top_p": 0.5}, {1}),
        ({"top_p": 0.51}, {1, 2}),
        ({"top_p": 0.95}, {1, 2, 3}),
        ({"top_k": 2}, {1, 2}),
        ({"top_k": -1}, {1, 2, 3, 4}),
        ({"top_p": 1e-46}, {1}),
        ({"min_p": 0.35}, {1, 2}),
        ({"min_p": 1.0}, {1}),
        ({"top_k": 3, "top_p": 0.4}, {1}),
        ({"allowed_token_ids": [2, 4]}, {2, 4}),
        ({"logit_bias": {"1": -100}}, {2, 3, 4}),
    ],
)
def test_filters_leave_exactly_their_tokens(sampling: dict[str, object], allowed: set[int]) -> None:
    assert set(draws(logits_of({1: 0.5, 2: 0.3, 3: 0.15, 4: 0.05}), choice(seed=3, **sampling))) == allowed


def test_seed_gives_the_same_tokens_whatever_else_is_in_the_batch() -> None:
    torch.manual_seed(0)
    steps = torch.randn(20, 1, VOCAB_SIZE)
    alone = choice(seed=11)
    expected = [sample(logits, [alone]).token_ids[0] for logits in steps]
    among = choice(seed=11)
    others = [choice(seed=5), choice(temperature=0), choice(seed=7, top_p=0.3)]
    got = []
    for logits in steps:
        batch = torch.cat([torch.randn(2, VOCAB_SIZE), logits, torch.randn(1, VOCAB_SIZE)])
        got.append(sample(batch, [others[0], others[1], among, others[2]]).token_ids[2])
    assert got == expected


def test_penalties_push_repeated_tokens_down() -> None:
    sequence = choice(temperature=0, frequency_penalty=2, presence_penalty=2)
    assert sequence.push(5)
    assert sequence.push(5)
    assert sample(logits_of({5: 0.98, 6: 0.02}), [sequence]).token_ids == [6]
    repeated = choice(temperature=0, repetition_penalty=3.0)  # its prompt is 1, 2, 3
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, 3], logits[0, 8] = 2.0, 1.0
    assert sample(logits, [repeated]).token_ids == [8]


def test_min_tokens_forbids_the_ending_ones() -> None:
    sequence = choice(temperature=0, min_tokens=2)
    assert sample(logits_of({EOS: 0.9, 6: 0.1}), [sequence]).token_ids == [6]
    assert sequence.push(6)
    assert sequence.push(6)
    assert sample(logits_of({EOS: 0.9, 6: 0.1}), [sequence]).token_ids == [EOS]


def test_logprobs_are_the_models_own_with_ranks_and_the_sampled_one_first() -> None:
    sequence = choice(temperature=0, logprobs=2, logit_bias={"2": 100})
    sampled = sample(logits_of({1: 0.5, 2: 0.1, 3: 0.4}), [sequence])
    (entry,) = sampled.logprobs
    assert entry is not None
    assert (entry.token_id, entry.rank) == (2, 3)
    assert entry.logprob == pytest.approx(math.log(0.1), abs=1e-4)
    assert [(top.token_id, top.rank) for top in entry.top_logprobs] == [(2, 3), (1, 1), (3, 2)]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (torch.full((1, VOCAB_SIZE), float("nan")), RendererError),
        (torch.full((1, VOCAB_SIZE), float("inf")), RendererError),
        (torch.full((1, VOCAB_SIZE), float("-inf")), RendererError),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_that_is_not_finite_fails_alone(bad: torch.Tensor, error: type[Exception], temperature: float) -> None:
    batch = torch.cat([logits_of({3: 1.0}), bad, logits_of({5: 1.0})])
    sampled = sample(batch, [choice(temperature=temperature, seed=1) for _ in range(3)])
    assert [type(failure) if failure else None for failure in sampled.errors] == [None, error, None]
    assert (sampled.token_ids[0], sampled.token_ids[2]) == (3, 5)


def test_parameters_that_leave_no_token_are_the_clients_mistake() -> None:
    overflowing = choice(repetition_penalty=1e-38, seed=1)
    nothing_allowed = choice(allowed_token_ids=[EOS], min_tokens=2, seed=1)
    logits = torch.ones(2, VOCAB_SIZE)
    logits[:, 3] = 5.0
    assert [type(error) for error in sample(logits, [overflowing, nothing_allowed]).errors] == [InvalidRequest] * 2


def test_logits_are_not_modified() -> None:
    logits = logits_of({1: 0.5, 2: 0.5})
    before = logits.clone()
    sample(logits, [choice(logit_bias={"1": 5}, seed=1)])
    assert torch.equal(logits, before)


def test_bad_word_is_forbidden_behind_its_beginning_only() -> None:
    sequence = choice(temperature=0, bad_tokens=[[7, 8], [9]])
    assert sample(logits_of({8: 0.6, 9: 0.4}), [sequence]).token_ids == [8]
    assert sequence.push(7)
    assert sample(logits_of({8: 0.6, 9: 0.3, 4: 0.1}), [sequence]).token_ids == [4]


def test_each_row_has_its_own_penalties_bias_and_forbidden_tokens() -> None:
    """A batch of rows that each want something gives what each gets alone."""
    torch.manual_seed(1)
    wishes: list[dict[str, object]] = [
        {"repetition_penalty": 1.7},
        {},
        {"presence_penalty": 1.0, "logit_bias": {"3": 2.5, "4": -1}},
        {"frequency_penalty": 0.7, "allowed_token_ids": [1, 2, 3, 40]},
        {"min_tokens": 9, "bad_tokens": [[5], [6, 7]]},
    ]
    batch = [choice(temperature=0, logprobs=3, max_tokens=20, **wish) for wish in wishes]
    alone = [choice(temperature=0, logprobs=3, max_tokens=20, **wish) for wish in wishes]
    for _ in range(12):
        logits = torch.randn(len(wishes), VOCAB_SIZE)
        together = sample(logits, batch)
        single = [sample(logits[row : row + 1], [sequence]) for row, sequence in enumerate(alone)]
        assert together.token_ids == [found.token_ids[0] for found in single]
        assert together.logprobs == [found.logprobs[0] for found in single]
        for row, token_id in enumerate(together.token_ids):
            assert batch[row].push(token_id)
            assert alone[row].push(token_id)


@pytest.mark.parametrize("sampling", [{"top_p": 0.9999}, {"min_p": 1e-6}, {"top_k": 3000}, {"top_k": 40, "top_p": 0.9}])
def test_filter_looks_beyond_the_best_candidates_where_it_must(sampling: dict[str, object]) -> None:
    """Of 5,000 tokens of nearly the same likelihood, as many different ones come as the filter leaves."""
    logits = torch.linspace(0, 0.5, 5000).flip(0).unsqueeze(0)
    seen = draws(logits, choice(seed=1, **sampling), 600)
    limit = min(5000, int(str(sampling["top_k"]))) if "top_k" in sampling else 5000
    assert max(seen) < limit
    assert max(seen) > limit * 0.8
