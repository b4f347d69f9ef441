from tests.unit.prefill_decode.fakes import NotingSink, make_request
from triton_renderer.prefill_decode.scheduler import Scheduler


def test_lower_priority_number_goes_first_then_arrival() -> None:
    scheduler = Scheduler(max_running=10, max_waiting=10, max_prefill_tokens=1000)
    requests = [make_request(NotingSink(), priority=priority) for priority in (1, 0, 1, -5)]
    for request in requests:
        scheduler.add(request)
    assert scheduler.schedule().prefills == [requests[3], requests[1], requests[0], requests[2]]


def test_prefill_tokens_of_a_step_are_bounded_but_a_long_prompt_runs_alone() -> None:
    scheduler = Scheduler(max_running=10, max_waiting=10, max_prefill_tokens=10)
    long, *short = [make_request(NotingSink(), [1] * length) for length in (50, 6, 4, 1)]
    for request in (long, *short):
        scheduler.add(request)
    assert scheduler.schedule().prefills == [long]
    assert scheduler.schedule().prefills == short[:2]
    assert scheduler.schedule().prefills == short[2:]


def test_choices_wait_until_all_have_a_place() -> None:
    scheduler = Scheduler(max_running=3, max_waiting=10, max_prefill_tokens=100)
    one, three = make_request(NotingSink()), make_request(NotingSink(), n=3)
    scheduler.add(one)
    scheduler.add(three)
    assert scheduler.schedule().prefills == [one]
    scheduler.started(one)
    assert scheduler.schedule().prefills == []
    one.sequences[0].finish_reason = "stop"
    scheduler.retire()
    assert scheduler.schedule().prefills == [three]


def test_removed_request_leaves_no_trace() -> None:
    scheduler = Scheduler(max_running=3, max_waiting=10, max_prefill_tokens=100)
    running, waiting = make_request(NotingSink()), make_request(NotingSink())
    scheduler.add(running)
    scheduler.schedule()
    scheduler.started(running)
    scheduler.add(waiting)
    scheduler.remove(running)
    scheduler.remove(waiting)
    assert scheduler.is_idle
