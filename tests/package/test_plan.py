"""The decisions of the master, without a process: time and events are arguments."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from package.plan_bench import AGED, GRACEFUL, Bench, a_worker

from tailrace.master.hang import WRITING
from tailrace.master.plan import (
    BETWEEN_FORKS,
    BETWEEN_FORKS_ALONE,
    BOOT_LEAVING,
    FAILURES,
    FIRST_DELAY,
    LEAVING,
    LONGEST_DELAY,
    SLOW_BOOT_AFTER,
    Drain,
    Fork,
    Kill,
    Loading,
    Plan,
    Reloaded,
    SlowBoot,
    Verdict,
)
from tailrace.master.workers import Draining, Killed
from tailrace.worker.announce import LOADING_AFTER


def numbers(bench):
    return sorted(worker.number for worker in bench.plan.serving)


def test_all_workers_are_forked_at_once():
    bench = Bench(3)
    assert (bench.plan.has_served, bench.plan.is_stopping) == (False, False)
    assert bench.forks() == [1, 2, 3]
    assert len({worker.place for worker in bench.plan.workers}) == 3
    assert bench.step() == []
    assert not bench.plan.is_complete
    assert [bench.plan.ready(worker, bench.now) for worker in bench.booting()] == [True] * 3
    assert (bench.plan.is_complete, bench.plan.has_served) == (True, True)
    assert bench.step() == []


def test_the_times_and_numbers_that_the_manual_promises():
    assert (FIRST_DELAY, LONGEST_DELAY, BETWEEN_FORKS, BETWEEN_FORKS_ALONE) == (1, 30, 1, 0.1)
    assert (FAILURES, BOOT_LEAVING, LEAVING, SLOW_BOOT_AFTER) == (3, 5, 5, 60)


def delay(bench, number):
    """How long it takes until this number is forked."""
    began = bench.now
    while number not in bench.forks():
        bench.now = bench.plan.wake_at(bench.now)
    return bench.now - began


def test_a_worker_that_has_served_is_replaced_at_once_however_often_it_dies():
    bench = Bench(2).serve()
    for _ in range(9):
        bench.now += 5
        assert bench.dies(bench.worker(1)) is Verdict.CRASHED
        assert bench.forks() == [1]
        bench.all_ready()


@pytest.mark.parametrize(("wanted", "least"), [(2, BETWEEN_FORKS), (1, BETWEEN_FORKS_ALONE)])
def test_workers_that_die_as_soon_as_they_serve_are_not_forked_without_pause(wanted, least):
    bench = Bench(wanted).serve()
    for _ in range(9):
        bench.dies(bench.worker(1))
        assert delay(bench, 1) == pytest.approx(least)
        bench.all_ready()


def test_all_workers_are_forked_again_at_once_when_none_serves():
    bench = Bench(4).serve()
    for _ in range(5):
        bench.now += 5
        for worker in bench.plan.serving:
            bench.dies(worker)
        assert bench.forks() == [1, 2, 3, 4]
        bench.all_ready()


def test_a_worker_that_dies_before_it_serves_is_tried_again_later_and_later():
    bench = Bench(2).serve()
    bench.dies(bench.worker(1), after=5)
    delays = []
    bench.forks()
    for _ in range(8):
        assert bench.dies(bench.booting()[0]) is Verdict.NOT_READY
        delays.append(delay(bench, 1))
    assert delays == [1, 2, 4, 8, 16, LONGEST_DELAY, LONGEST_DELAY, LONGEST_DELAY]
    # Once it has served it is one that has served.
    bench.all_ready()
    bench.dies(bench.worker(1), after=5)
    assert bench.forks() == [1]
    bench.dies(bench.booting()[0])
    assert delay(bench, 1) == FIRST_DELAY


def keeps_failing(bench, times):
    """The first worker dies, and so do its successors before they serve."""
    bench.dies(bench.worker(1), after=5)
    for _ in range(times):
        delay(bench, 1)
        bench.dies(bench.booting()[0])


def test_the_delay_of_one_worker_number_does_not_delay_others():
    bench = Bench(3).serve()
    keeps_failing(bench, 6)
    bench.dies(bench.worker(2))
    assert bench.forks() == [2]


def test_the_delay_after_failures_is_short_while_no_worker_serves():
    bench = Bench(2).serve()
    keeps_failing(bench, 7)
    last = bench.now
    bench.dies(bench.worker(2))
    assert bench.forks() == [2]
    assert delay(bench, 1) == bench.now - last == FIRST_DELAY


def test_a_successor_that_fails_does_not_delay_the_successors_of_others():
    bench = Bench(2).serve()
    for worker in bench.plan.serving:
        worker.due = AGED
    assert bench.forks() == [1]
    bench.dies(bench.booting()[0])
    assert bench.forks() == [2]


def test_a_reload_replaces_one_worker_after_the_other_each_when_its_successor_serves():
    bench = Bench(3).serve()
    old = list(bench.plan.serving)
    bench.plan.reload(bench.now)
    for number in (1, 2, 3):
        assert bench.forks() == [number], "one at a time"
        assert bench.step() == []
        assert len(bench.plan.serving) == 3, "nobody leaves before the successor serves"
        bench.now += 1
        bench.all_ready()
        (retired,) = [action.worker for action in bench.plan.next(bench.now)[:1] if isinstance(action, Drain)]
        assert (retired.number, retired in old) == (number, True)
        # What else that step wanted, the next one wants again.
    assert not bench.plan.is_reloading
    assert {worker.generation for worker in bench.plan.serving} == {2}
    assert numbers(bench) == [1, 2, 3]


def test_a_reload_says_when_it_is_complete():
    bench = Bench(2, now=2.0).serve().reload()
    bench.now += 5
    bench.serve()
    assert [action for action in bench.done if isinstance(action, Reloaded)] == [Reloaded(5)]


def test_new_code_that_does_not_load_leaves_the_old_workers():
    bench = Bench(2).serve().reload()
    (new,) = bench.boot()
    assert bench.dies(new) is Verdict.RELOAD_FAILED
    assert not bench.plan.is_reloading
    assert bench.step() == []
    assert bench.plan.is_complete
    # A worker that dies meanwhile is forked with the new code, and is not replaced again.
    bench.dies(bench.worker(1), after=5)
    assert bench.forks() == [1]
    bench.all_ready()
    assert bench.step() == []
    assert [bench.plan.has_current_code(worker) for worker in bench.plan.serving] == [True, True]
    # The next reload is like the first.
    bench.plan.reload(bench.now)
    bench.serve()
    assert {worker.generation for worker in bench.plan.serving} == {3}


def test_a_second_reload_during_a_reload_replaces_those_of_the_first_too():
    bench = Bench(2).serve().reload()
    bench.step()
    bench.plan.reload(bench.now)
    bench.serve()
    assert {worker.generation for worker in bench.plan.serving} == {3}
    assert len([action for action in bench.done if isinstance(action, Reloaded)]) == 1


def test_a_second_reload_ends_the_worker_that_hangs_in_the_first():
    bench = Bench(2).serve().reload()
    assert bench.forks() == [1]
    (hangs,) = bench.booting()
    bench.plan.reload(bench.now)
    assert Drain(hangs) in bench.step()
    assert hangs.phase == Draining(bench.now + BOOT_LEAVING)
    bench.now += BOOT_LEAVING
    assert Kill(hangs) in bench.step()
    assert bench.dies(hangs) is Verdict.EXPECTED
    assert len(bench.plan.serving) == 2
    bench.serve()
    assert {worker.generation for worker in bench.plan.serving} == {3}


def test_a_worker_that_loads_for_long_is_named_once():
    bench = Bench(1, now=2.0)
    (slow,) = bench.boot()
    bench.now += LOADING_AFTER
    assert bench.step() == [Loading()]
    assert bench.plan.wake_at(bench.now) == slow.forked + SLOW_BOOT_AFTER
    bench.now = slow.forked + SLOW_BOOT_AFTER
    assert bench.step() == [SlowBoot(slow, SLOW_BOOT_AFTER)]
    bench.now += SLOW_BOOT_AFTER
    assert bench.step() == []
    assert bench.plan.wake_at(bench.now) is None
    bench.all_ready()
    assert bench.plan.is_complete


def test_what_is_due_is_done_late_when_the_master_was_late():
    bench = Bench(1)
    (slow,) = bench.boot()
    bench.now += LOADING_AFTER + SLOW_BOOT_AFTER
    assert bench.step() == [SlowBoot(slow, LOADING_AFTER + SLOW_BOOT_AFTER), Loading()]
    bench.all_ready()
    slow.due = AGED
    bench.serve()
    bench.now += GRACEFUL + LEAVING + 1
    assert bench.step() == [Kill(slow)]


def test_until_a_worker_has_served_it_is_said_once_that_the_application_is_loaded():
    bench = Bench(2)
    bench.step()
    assert bench.plan.wake_at(bench.now) == bench.now + LOADING_AFTER
    bench.now += LOADING_AFTER
    assert bench.step() == [Loading()]
    bench.now += LOADING_AFTER
    assert bench.step() == []
    bench.all_ready()
    bench.step()
    bench.plan.reload(bench.now)
    bench.step()
    bench.now += LOADING_AFTER
    assert bench.step() == [], "others serve"


def test_a_worker_that_becomes_ready_at_a_stop_has_the_time_of_one_that_serves():
    bench = Bench(1)
    bench.step()
    (worker,) = bench.plan.stop(bench.now)
    bench.now += 1
    assert not bench.plan.ready(worker, bench.now)
    assert worker.phase == Draining(bench.now + GRACEFUL + LEAVING)


def test_a_worker_that_is_ready_at_an_immediate_stop_gets_no_further_time():
    bench = Bench(1)
    bench.step()
    (worker,) = bench.plan.stop_now(bench.now)
    assert not bench.plan.ready(worker, bench.now)
    assert worker.phase == Draining(bench.now)


def test_a_failure_of_the_first_reloads_worker_does_not_end_the_second():
    bench = Bench(2).serve().reload()
    (new,) = bench.boot()
    bench.plan.reload(bench.now)
    assert bench.dies(new) is Verdict.NOT_READY
    bench.serve()
    assert {worker.generation for worker in bench.plan.serving} == {3}


def test_an_old_worker_that_dies_during_a_reload_is_replaced_by_the_successor_that_boots():
    bench = Bench(2).serve().reload()
    bench.step()
    bench.dies(bench.worker(1))
    assert bench.forks() == []
    bench.now += 60
    bench.serve()
    assert numbers(bench) == [1, 2]
    assert {worker.generation for worker in bench.plan.serving} == {2}


def test_a_reload_ends_the_wait_of_workers_that_keep_dying():
    bench = Bench(2).serve()
    bench.dies(bench.worker(1), after=5)
    bench.step()
    bench.dies(bench.booting()[0])
    assert bench.forks() == []
    bench.plan.reload(bench.now)
    assert bench.forks() == [1]


def test_a_worker_that_is_due_serves_until_its_successor_does():
    bench = Bench(2).serve()
    first = bench.worker(1)
    first.due = AGED
    assert bench.forks() == [1]
    assert first.is_serving
    bench.all_ready()
    assert bench.step() == [Drain(first)]
    assert first.phase == Draining(bench.now + GRACEFUL + LEAVING)
    assert numbers(bench) == [1, 2]


def test_workers_that_are_due_together_are_replaced_one_after_the_other():
    bench = Bench(3).serve()
    for worker in bench.plan.serving:
        worker.due = AGED
    assert bench.forks() == [1]
    bench.all_ready()
    assert bench.forks() == [2]
    bench.all_ready()
    assert bench.forks() == [3]


def test_a_worker_that_does_not_end_is_killed_when_its_time_is_over():
    bench = Bench(1).serve()
    worker = bench.worker(1)
    worker.due = AGED
    bench.serve()
    assert bench.plan.wake_at(bench.now) == bench.now + GRACEFUL + LEAVING
    bench.now += GRACEFUL + LEAVING
    assert bench.step() == [Kill(worker)]
    assert isinstance(worker.phase, Killed)
    assert bench.step() == []
    assert bench.dies(worker) is Verdict.EXPECTED
    assert bench.step() == []


def test_the_death_of_a_draining_worker_needs_no_replacement():
    bench = Bench(1).serve()
    old = bench.worker(1)
    old.due = AGED
    bench.serve()
    assert bench.dies(old) is Verdict.EXPECTED
    assert bench.step() == []


def test_the_number_of_workers_can_be_raised_and_lowered():
    bench = Bench(2).serve()
    assert bench.plan.grow()
    assert bench.forks() == [3]
    bench.all_ready()
    third = bench.worker(3)
    assert bench.plan.shrink()
    assert bench.plan.is_complete, "with one more than is wanted"
    assert bench.step() == [Drain(third)]
    assert bench.plan.shrink()
    bench.serve()
    assert numbers(bench) == [1]
    assert not bench.plan.shrink()


def test_the_number_of_workers_is_lowered_while_one_loads():
    bench = Bench(2)
    bench.step()
    bench.plan.shrink()
    bench.serve()
    assert numbers(bench) == [1]


def test_another_number_of_workers_is_reached():
    bench = Bench(2, places=8).serve()
    bench.plan.resize(3)
    bench.serve()
    assert numbers(bench) == [1, 2, 3]
    bench.plan.resize(1)
    bench.serve()
    assert numbers(bench) == [1]
    bench.plan.resize(80)
    assert bench.plan.wanted == 4
    bench.plan.resize(0)
    assert bench.plan.wanted == 1


def test_there_is_always_a_place_for_a_successor():
    bench = Bench(1, places=6).serve()
    assert [bench.plan.grow() for _ in range(4)] == [True, True, False, False]
    assert bench.plan.wanted == 3
    bench = Bench(1, places=9).serve()
    assert [bench.plan.grow() for _ in range(6)] == [True] * 4 + [False] * 2
    assert bench.plan.wanted == 5


def test_without_a_free_place_a_successor_waits_for_one():
    bench = Bench(2, places=4).serve()
    for _ in range(2):
        bench.plan.reload(bench.now)
        bench.serve()
    # Four of which two drain: no place for the second reload.
    draining = [worker for worker in bench.plan.workers if isinstance(worker.phase, Draining)]
    assert len(draining) == 2
    assert bench.plan.is_reloading
    assert bench.dies(draining[0]) is Verdict.EXPECTED
    assert len(bench.forks()) == 1


def test_the_server_gives_up_when_the_first_worker_fails():
    bench = Bench(3)
    bench.step()
    assert bench.dies(bench.booting()[1]) is Verdict.GIVE_UP


def test_the_server_gives_up_after_failures_in_a_row_when_no_worker_serves():
    bench = Bench(1).serve()
    bench.dies(bench.worker(1), after=5)
    verdicts = []
    for _ in range(FAILURES):
        bench.step()
        verdicts.append(bench.dies(bench.booting()[0]))
        bench.now += LONGEST_DELAY
    assert verdicts == [Verdict.NOT_READY] * (FAILURES - 1) + [Verdict.GIVE_UP]


def test_failures_do_not_end_workers_that_serve():
    bench = Bench(2).serve()
    bench.dies(bench.worker(1), after=5)
    for _ in range(3 * FAILURES):
        assert bench.forks() == [1]
        assert bench.dies(bench.booting()[0]) is Verdict.NOT_READY
        bench.now += LONGEST_DELAY
    assert numbers(bench) == [2]
    # When the last worker dies too, the next failure is one too many.
    bench.dies(bench.worker(2))
    bench.step()
    assert bench.dies(bench.booting()[0]) is Verdict.GIVE_UP


def test_the_failures_before_a_reload_do_not_count_after_it():
    bench = Bench(1).serve()
    bench.dies(bench.worker(1))
    for _ in range(FAILURES - 1):
        bench.now += LONGEST_DELAY
        bench.step()
        assert bench.dies(bench.booting()[0]) is Verdict.NOT_READY
    bench.plan.reload(bench.now)
    verdicts = []
    for _ in range(FAILURES):
        bench.now += LONGEST_DELAY
        bench.step()
        verdicts.append(bench.dies(bench.booting()[0]))
    assert verdicts == [Verdict.NOT_READY] * (FAILURES - 1) + [Verdict.GIVE_UP]


def test_the_failure_of_a_successor_delays_the_next_one_by_the_first_delay():
    bench = Bench(2).serve()
    bench.worker(1).due = AGED
    bench.step()
    bench.dies(bench.booting()[0])
    assert delay(bench, 1) == FIRST_DELAY


def test_workers_that_load_are_kept_while_another_one_waits():
    bench = Bench(3).serve()
    bench.now += 5
    for worker in bench.plan.serving:
        bench.dies(worker)
    assert bench.forks() == [1, 2, 3]
    bench.dies(bench.booting()[0])
    assert bench.step() == []
    assert len(bench.booting()) == 2


def test_a_fork_that_fails_is_tried_again_later():
    plan = Plan(1, 64, GRACEFUL)
    assert plan.next(0.0) == [Fork(1, 0, 1)]
    plan.fork_failed(a_worker(pid=0), 0.0)
    assert plan.next(0.0) == []
    assert plan.wake_at(0.0) == FIRST_DELAY
    assert plan.next(FIRST_DELAY) == [Fork(1, 0, 1)]
    made = a_worker(pid=0, forked=FIRST_DELAY)
    plan.forked(made)
    assert plan.next(FIRST_DELAY) == []
    plan.fork_failed(made, FIRST_DELAY)
    assert (plan.workers, plan.wake_at(FIRST_DELAY)) == ([], 2 * FIRST_DELAY)


def test_a_stop_gives_serving_workers_the_graceful_time_and_loading_ones_little():
    bench = Bench(2).serve()
    bench.plan.grow()
    (boots,) = bench.boot()
    told = bench.plan.stop(bench.now)
    assert set(told) == set(bench.plan.workers)
    assert boots.phase == Draining(bench.now + BOOT_LEAVING)
    assert {worker.phase for worker in told if worker is not boots} == {Draining(bench.now + GRACEFUL + LEAVING)}
    assert bench.step() == []
    assert not bench.plan.is_over
    for worker in told:
        assert bench.dies(worker) is Verdict.EXPECTED
    assert bench.step() == []
    assert bench.plan.is_over


def test_a_stop_does_not_change_the_time_of_workers_that_drain_already():
    bench = Bench(1).serve()
    old = bench.worker(1)
    old.due = AGED
    bench.serve()
    until = old.phase.until
    bench.now += 10
    assert old not in bench.plan.stop(bench.now)
    assert old.phase.until == until


def test_an_immediate_stop_shortens_the_time_of_a_stop():
    bench = Bench(1).serve()
    worker = bench.worker(1)
    bench.plan.stop(bench.now)
    assert bench.plan.stop_now(bench.now) == [worker]
    assert bench.step() == []
    bench.now += LEAVING
    assert bench.step() == [Kill(worker)]
    assert bench.plan.stop_now(bench.now) == []


def test_an_immediate_stop_kills_workers_that_load():
    bench = Bench(1)
    (boots,) = bench.boot()
    bench.plan.stop_now(bench.now)
    assert bench.step() == [Kill(boots)]


def test_a_stop_without_workers_is_over_at_once():
    bench = Bench(1).serve()
    bench.dies(bench.worker(1))
    assert not bench.plan.workers
    bench.plan.stop(bench.now)
    assert (bench.plan.is_over, bench.plan.is_stopping) == (True, True)
    assert bench.plan.wake_at(bench.now) is None


EVENTS = st.sampled_from(
    ["ready", "ready", "ready", "boot fails", "crash", "drained", "reload", "judge", "grow", "shrink", "due", "time"]
)


def test_workers_that_load_are_told_to_end_when_fewer_are_wanted():
    bench = Bench(1).serve()
    bench.plan.grow()
    bench.plan.grow()
    assert bench.forks() == [2, 3]
    bench.plan.shrink()
    bench.plan.shrink()
    drained = [action.worker for action in bench.step() if isinstance(action, Drain)]
    assert [worker.number for worker in drained] == [3, 2]
    assert {worker.phase for worker in drained} == {Draining(bench.now + BOOT_LEAVING)}
    assert numbers(bench) == [1]


def test_of_many_workers_that_load_as_many_stay_as_are_wanted():
    bench = Bench(4)
    bench.step()
    for _ in range(3):
        bench.plan.shrink()
    assert [action.worker.number for action in bench.step() if isinstance(action, Drain)] == [4, 3, 2]


def test_a_successor_is_told_to_end_with_the_worker_that_it_was_for():
    bench = Bench(2).serve()
    bench.worker(1).due = AGED
    assert bench.forks() == [1]
    first, successor = bench.worker(1), bench.booting()[0]
    assert not bench.step(), "a successor is none too many"
    bench.plan.shrink()
    assert bench.step() == [Drain(first), Drain(successor)]
    assert numbers(bench) == [2]


@settings(deadline=None)
@given(
    wanted=st.integers(1, 4),
    trial=st.sampled_from([0.0, 10.0]),
    events=st.lists(st.tuples(EVENTS, st.integers(0, 10)), max_size=60),
)
def test_no_order_of_events_ends_a_serving_worker_without_need(wanted, trial, events):
    bench = Bench(wanted, places=12, trial=trial).serve()
    plan = bench.plan
    for event, pick in events:
        before = len(plan.serving)
        draining = [worker for worker in plan.workers if isinstance(worker.phase, (Draining, Killed))]
        on_trial = [worker for worker in plan.serving if plan.is_on_trial(worker)]
        lost = 0
        if event == "ready" and bench.booting():
            plan.ready(bench.booting()[0], bench.now)
        elif event == "boot fails" and bench.booting():
            if plan.ended(bench.booting()[0], bench.now) is Verdict.RELOAD_FAILED:
                lost = len(on_trial)
        elif event == "crash" and plan.serving:
            is_undone = plan.ended(plan.serving[pick % before], bench.now) is Verdict.RELOAD_FAILED
            lost = len(on_trial) if is_undone else 1
        elif event == "drained" and draining:
            plan.ended(draining[pick % len(draining)], bench.now)
        elif event == "reload":
            plan.reload(bench.now)
            lost = len(on_trial)
        elif event == "judge" and on_trial:
            if pick % 2 or len(on_trial) == before:
                plan.accept()
            else:
                plan.reject()
                lost = len(on_trial)
        elif event == "grow":
            plan.grow()
        elif event == "shrink":
            plan.shrink()
        elif event == "due" and plan.serving:
            plan.serving[pick % before].due = AGED
        elif event == "time":
            bench.now = plan.wake_at(bench.now) or bench.now
            if plan.trial_ends is not None and bench.now >= plan.trial_ends:
                plan.accept()
        bench.step()
        assert len(plan.serving) >= min(before - lost, plan.wanted)
        places = [worker.place for worker in plan.workers]
        assert len(places) == len(set(places)), "one place, one worker"
        active = [worker for worker in plan.workers if worker.is_booting or worker.is_serving]
        assert len(active) <= max(plan.wanted, before) + 1 or plan.serving == active
    # Left alone it comes to rest, with as many workers as are wanted and none to replace.
    for _ in range(200):
        for worker in list(plan.workers):
            if not worker.is_booting and not worker.is_serving:
                plan.ended(worker, bench.now)
        bench.all_ready()
        if not bench.step() and not bench.booting():
            if (at := plan.wake_at(bench.now)) is None:
                break
            bench.now = at
            if plan.trial_ends is not None:
                plan.accept()
    assert numbers(bench) == list(range(1, plan.wanted + 1)) or len(plan.serving) == plan.wanted
    assert not plan.is_reloading
    # After a rejected reload, a successor would have the rejected code.
    assert plan.keeps_rejected_code_out or not any(worker.due for worker in plan.serving)


@pytest.mark.parametrize("wanted", [1, 2, 5])
def test_the_last_worker_with_old_code_ends_after_its_successor_serves(wanted):
    bench = Bench(wanted).serve().reload()
    bench.serve()
    retired = [action.worker.number for action in bench.done if isinstance(action, Drain)]
    assert retired == list(range(1, wanted + 1))


def test_a_restart_ends_all_workers_before_it_forks_others():
    bench = Bench(2).serve()
    old = bench.plan.serving
    bench.plan.forked(booting := a_worker(3, 9, 1, 99, bench.now))
    assert bench.plan.restart(bench.now) == [*old, booting]
    assert [worker.phase.until - bench.now for worker in (*old, booting)] == [GRACEFUL + LEAVING] * 2 + [BOOT_LEAVING]
    assert bench.plan.serving == []
    assert bench.forks() == [1, 2], "at once, while the old ones drain"
    assert all(worker.generation == 2 for worker in bench.booting())
    bench.all_ready()
    (done,) = bench.step()
    assert isinstance(done, Reloaded)
    assert [bench.dies(worker) for worker in (*old, booting)] == [Verdict.EXPECTED] * 3


def test_a_restart_forgets_earlier_failures():
    bench = Bench(1).serve()
    bench.dies(bench.worker(1))
    for _ in range(FAILURES - 1):
        bench.now += LONGEST_DELAY
        bench.step()
        assert bench.dies(bench.booting()[0]) is Verdict.NOT_READY
    assert bench.forks() == [], "it waits"
    bench.plan.restart(bench.now)
    assert bench.forks() == [1]
    assert bench.dies(bench.booting()[0]) is Verdict.NOT_READY


def test_a_worker_that_hangs_is_replaced_at_once_and_killed_after_a_second():
    bench = Bench(1).serve()
    worker = bench.worker(1)
    bench.plan.hangs(worker, bench.now)
    assert bench.forks() == [1], "before it is killed"
    bench.all_ready()
    assert bench.plan.wake_at(bench.now) == bench.now + WRITING
    bench.now += WRITING
    assert bench.step() == [Kill(worker, hung=True)]
    assert bench.dies(worker) is Verdict.EXPECTED
    assert bench.step() == []


def test_a_stop_kills_a_worker_that_hangs():
    bench = Bench(1).serve()
    worker = bench.worker(1)
    bench.plan.hangs(worker, bench.now)
    assert bench.plan.stop(bench.now) == bench.plan.stop_now(bench.now) == []
    bench.now += WRITING
    assert bench.step() == [Kill(worker, hung=True)]
    bench.dies(worker)
    assert bench.plan.is_over
