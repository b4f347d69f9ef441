import random

import pytest

from tests.unit.prefill_decode.fakes import CountingRunner, NotingSink, make_request, make_scheduler
from triton_renderer.errors import QueueFull
from triton_renderer.prefill_decode.blocks import BLOCK_TOKENS
from triton_renderer.prefill_decode.scheduler import Scheduler, Work
from triton_renderer.prefill_decode.sequence import Request


def step(scheduler: Scheduler, runner: CountingRunner | None = None) -> list[Work]:
    """One step in which every complete sequence gets token 5."""
    works = scheduler.schedule()
    if runner:
        runner.forward(works, [0])
    sampling = [work.sequence for work in works if work.samples]
    scheduler.computed(works)
    for sequence in sampling:
        sequence.output_ids.append(5)
    scheduler.check_integrity()
    return works


def add(scheduler: Scheduler, *args: object, **options: object) -> Request:
    request = make_request(NotingSink(), *args, **options)  # type: ignore[arg-type]
    scheduler.add(request)
    return request


def lengths(works: list[Work]) -> list[int]:
    return [work.length for work in works]


def test_lower_priority_number_goes_first_then_arrival() -> None:
    scheduler = make_scheduler(max_running=10)
    requests = [add(scheduler, priority=priority) for priority in (1, 0, 1, -5)]
    assert [work.sequence.request for work in scheduler.schedule()] == [requests[i] for i in (3, 1, 0, 2)]


def test_decoding_sequences_go_first_and_a_long_prompt_gets_what_is_left_of_the_budget() -> None:
    scheduler = make_scheduler(max_step_tokens=20)
    add(scheduler, [1])
    add(scheduler, [2])
    assert lengths(step(scheduler)) == [1, 1]
    add(scheduler, [3] * 50)
    assert [lengths(step(scheduler)) for _ in range(4)] == [[1, 1, 18], [1, 1, 18], [1, 1, 14], [1, 1, 1]]


def test_chunks_beside_decoding_sequences_get_shorter_as_their_context_grows() -> None:
    scheduler = make_scheduler(max_step_tokens=20, context_cost=0.05)
    add(scheduler, [3] * 50)
    assert lengths(step(scheduler)) == [20]
    add(scheduler, [1])
    # Alone, it is not held up; beside the other one its tokens count for 1 + 0.05 · (40, 45, …).
    assert lengths(step(scheduler)) == [20]
    assert [lengths(step(scheduler)) for _ in range(3)] == [[1, 10], [1, 1], [1, 1]]
    add(scheduler, [4] * 50)
    assert [lengths(step(scheduler)) for _ in range(6)] == [[1, 1, 18], [1, 1, 9], [1, 1, 7], [1, 1, 6], [1, 1, 6], [1, 1, 4]]


def test_prompts_share_a_step_and_the_one_that_does_not_fit_is_cut() -> None:
    scheduler = make_scheduler(max_step_tokens=30)
    for length in (12, 12, 12):
        add(scheduler, [1] * length)
    assert lengths(step(scheduler)) == [12, 12, 6]
    assert lengths(step(scheduler)) == [1, 1, 6]


def test_full_queue_refuses_by_requests() -> None:
    scheduler = make_scheduler(max_waiting=2)
    add(scheduler, n=8)
    add(scheduler)
    with pytest.raises(QueueFull):
        add(scheduler)


def test_a_request_that_finds_too_few_blocks_waits_and_those_behind_it_too() -> None:
    scheduler = make_scheduler(num_blocks=1 + 6)
    add(scheduler, [1] * 40)
    step(scheduler)
    add(scheduler, [2] * 60)
    add(scheduler, [3])
    assert lengths(step(scheduler)) == [1]
    scheduler.finish(scheduler.running[0])
    assert lengths(step(scheduler)) == [1, 60]


def test_prompt_that_begins_like_an_earlier_one_computes_only_the_rest() -> None:
    scheduler = make_scheduler()
    first = add(scheduler, list(range(40)))
    step(scheduler)
    scheduler.finish(first.sequences[0])
    again, other = add(scheduler, [*range(40)]), add(scheduler, [*range(33), 7, 7])
    assert lengths(step(scheduler)) == [40 - 32, 35 - 32]
    assert (again.sequences[0].num_cached, other.sequences[0].num_cached) == (32, 32)


def test_the_newest_token_is_always_computed() -> None:
    scheduler = make_scheduler()
    for _ in range(2):
        request = add(scheduler, [1] * 2 * BLOCK_TOKENS)
        works = step(scheduler)
        scheduler.finish(request.sequences[0])
    assert lengths(works) == [BLOCK_TOKENS]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"cache_salt": None}, {"cache_salt": ""}),
        ({"pictures": [(2, 6, b"one")]}, {"pictures": [(2, 6, b"two")]}),
        ({"pictures": [(2, 6, b"one")]}, {"pictures": [(3, 7, b"one")]}),
        ({"pictures": [(2, 6, b"one")]}, {}),
    ],
)
def test_other_salts_and_other_pictures_share_nothing(first: dict[str, object], second: dict[str, object]) -> None:
    scheduler = make_scheduler()
    for options in (first, second):
        add(scheduler, [1] * 40, **options)
        assert lengths([work for work in step(scheduler) if work.start == 0 and work.length > 1]) == [40]


def test_the_same_picture_is_shared() -> None:
    scheduler = make_scheduler()
    for expected in (40, 8):
        request = add(scheduler, [1] * 40, pictures=[(2, 6, b"one")])
        assert lengths(step(scheduler)) == [expected]
        scheduler.finish(request.sequences[0])


def test_without_prefix_caching_nothing_is_found_but_choices_share_their_prompt() -> None:
    scheduler = make_scheduler(prefix_caching=False)
    for _ in range(2):
        request = add(scheduler, [1] * 40, n=3)
        assert lengths(step(scheduler)) == [40]
        assert lengths(step(scheduler)) == [1, 8, 8]
        for sequence in request.sequences:
            scheduler.finish(sequence)
    assert scheduler.pool.num_cached == 0


def test_a_picture_whose_tokens_see_each_other_is_never_cut() -> None:
    scheduler = make_scheduler(max_step_tokens=20, whole_pictures=True)
    add(scheduler, [1] * 90, pictures=[(15, 30, b"a"), (31, 80, b"b")])
    assert lengths(step(scheduler)) == [15]
    assert lengths(step(scheduler)) == [16]  # the picture and the token behind it; the next picture would be cut
    assert lengths(step(scheduler)) == [49]
    add(scheduler, [1] * 90, pictures=[(15, 30, b"a"), (31, 80, b"c")])
    assert [work.start for work in step(scheduler)] == [80, 0]  # block 1 ends in the second picture, block 0 in the first


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_random_work_in_a_small_cache_computes_every_token_once_a_residence(seed: int, prefix_caching: bool) -> None:
    """The runner checks at each step that the blocks hold what the sequences are made of."""
    rng = random.Random(seed)
    scheduler, runner = make_scheduler(num_blocks=14, prefix_caching=prefix_caching), CountingRunner()
    open_requests: list[Request] = []
    ended = 0
    for turn in range(400):
        if turn < 300 and rng.random() < 0.3:
            prompt = [rng.randrange(2)] * rng.choice([1, 15, 16, 17, 40, 70]) + [rng.randrange(40)] * rng.randrange(3)
            open_requests.append(add(scheduler, prompt, n=rng.choice([1, 1, 3]), priority=rng.randrange(3)))
        for request in list(open_requests):
            for sequence in request.sequences:
                if len(sequence.output_ids) > 60 or rng.random() < 0.03:
                    sequence.finish_reason = "stop"
                    scheduler.finish(sequence)
            if request.is_finished:
                open_requests.remove(request)
                ended += 1
        if not scheduler.is_idle:
            step(scheduler, runner)
    assert ended > 30
    assert scheduler.num_preemptions > 0
    for request in open_requests:
        for sequence in request.sequences:
            scheduler.finish(sequence)
    assert scheduler.is_idle
    scheduler.check_integrity()
    assert scheduler.pool.num_unused == scheduler.pool.num_usable
