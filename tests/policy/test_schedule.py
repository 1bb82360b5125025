from spaniel.policy.base import Request, Sampling
from spaniel.policy.schedule import Job, Schedule


def job(episode, prompt):
    request = Request(episode_id=episode, token_ids=tuple(prompt), messages=(), sampling=Sampling())
    return Job(request=request, future=None, uniforms=())


def add(schedule, *jobs):
    for each in jobs:
        schedule.add(each)
    schedule.admit()


def run(schedule):
    """One pass: what was fed, as (slot, number of tokens, number of twins)."""
    feeds = schedule.next_batch()
    for feed in feeds:
        if schedule.advance(feed):
            for each in (feed.job, *feed.twins):
                each.slot.token_ids = list(each.request.token_ids)
                each.token_ids, each.pending = [1], [1]
    return [(feed.job.slot.index, feed.num_tokens, len(feed.twins)) for feed in feeds]


def test_a_turn_that_extends_the_one_before_feeds_only_what_is_new():
    schedule = Schedule(2, max_pass_tokens=100, can_rewind=True)
    first = job("a", range(10))
    add(schedule, first)
    assert run(schedule) == [(0, 10, 0)]
    schedule.remove(first)
    add(schedule, job("a", range(14)))
    assert run(schedule) == [(0, 4, 0)]


def test_a_prompt_that_leaves_the_cached_one_starts_at_the_common_prefix_or_at_nothing():
    for can_rewind, fed in ((True, 5), (False, 8)):
        schedule = Schedule(1, max_pass_tokens=100, can_rewind=can_rewind)
        first = job("a", range(10))
        add(schedule, first)
        run(schedule)
        schedule.remove(first)
        add(schedule, job("a", [0, 1, 2, 50, 51, 52, 53, 54]))
        assert run(schedule) == [(0, fed, 0)]


def test_the_same_prompt_again_feeds_at_least_its_last_token():
    schedule = Schedule(1, max_pass_tokens=100, can_rewind=True)
    first = job("a", range(10))
    add(schedule, first)
    run(schedule)
    schedule.remove(first)
    add(schedule, job("a", range(10)))
    assert run(schedule) == [(0, 1, 0)]


def test_equal_first_prompts_are_fed_once():
    schedule = Schedule(4, max_pass_tokens=100, can_rewind=False)
    add(schedule, *(job(name, range(9)) for name in "abc"), job("d", range(8)))
    assert run(schedule) == [(0, 9, 2), (3, 8, 0)]
    assert run(schedule) == [(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 0)]


def test_a_twin_takes_over_when_the_request_it_waited_for_is_withdrawn():
    schedule = Schedule(2, max_pass_tokens=6, can_rewind=False)
    first, twin = job("a", range(9)), job("b", range(9))
    add(schedule, first, twin)
    assert run(schedule) == [(0, 6, 1)]
    schedule.remove(first)
    assert run(schedule) == [(1, 6, 0)]
    assert run(schedule) == [(1, 3, 0)]


def test_prompts_fill_the_pass_beside_the_decoding_requests_oldest_first():
    schedule = Schedule(3, max_pass_tokens=10, can_rewind=True)
    add(schedule, job("a", [1]))
    assert run(schedule) == [(0, 1, 0)]
    add(schedule, job("b", range(12)), job("c", range(20, 25)))
    assert run(schedule) == [(0, 1, 0), (1, 9, 0)]
    assert run(schedule) == [(0, 1, 0), (1, 3, 0), (2, 5, 0)]


def test_prefill_goes_on_when_decoding_alone_fills_the_pass():
    schedule = Schedule(3, max_pass_tokens=2, can_rewind=True)
    add(schedule, job("a", [1]), job("b", [2]))
    run(schedule)
    add(schedule, job("c", [5, 6]))
    assert run(schedule) == [(0, 1, 0), (1, 1, 0), (2, 1, 0)]


def test_a_newcomer_waits_while_all_slots_are_busy_and_takes_the_longest_idle():
    schedule = Schedule(2, max_pass_tokens=100, can_rewind=True)
    a, b = job("a", range(5)), job("b", range(6))
    add(schedule, a, b)
    c = job("c", range(7))
    add(schedule, c)
    assert schedule.waiting == [c]
    schedule.remove(b)
    schedule.remove(a)
    again = job("a", range(8))
    add(schedule, again)
    assert c.slot.index == 1  # b's: a came back first
    assert again.slot.index == 0
    assert schedule.num_evicted == 1
    assert again.pending == list(range(8))  # no pass was made for it before


def test_an_episode_coming_back_is_never_evicted_by_a_newcomer_ahead_of_it():
    schedule = Schedule(1, max_pass_tokens=100, can_rewind=True)
    first = job("a", range(5))
    add(schedule, first)
    run(schedule)
    schedule.remove(first)
    newcomer, again = job("b", range(3)), job("a", range(9))
    add(schedule, newcomer, again)
    assert schedule.waiting == [newcomer]
    assert again.pending == [5, 6, 7, 8]


def test_an_ended_episode_frees_its_slot():
    schedule = Schedule(1, max_pass_tokens=100, can_rewind=True)
    first = job("a", range(5))
    add(schedule, first)
    run(schedule)
    schedule.remove(first)
    schedule.end_episode("a")
    add(schedule, job("b", range(5)))
    assert schedule.num_evicted == 0
    assert run(schedule) == [(0, 5, 0)]
