"""`--reload-trial`: when a worker is on trial, and what is compared."""

import itertools

import pytest
from package.plan_bench import AGED, Bench, a_worker

from tailrace.master.plan import Drain, Fork, Reloaded, Verdict
from tailrace.master.trial import Figures, Trial, fault
from tailrace.status.counts import added

TRIAL = 10.0


def on_trial(wanted=2):
    """Workers of which one with the new code is on trial, and that one."""
    bench = Bench(wanted, trial=TRIAL).serve()
    bench.plan.reload(bench.now)
    assert bench.forks() == [1]
    bench.all_ready()
    new = next(worker for worker in bench.plan.serving if worker.generation == 2)
    assert bench.plan.is_on_trial(new)
    return bench, new


def generations(bench):
    return sorted(worker.generation for worker in bench.plan.serving)


def drained(actions):
    return [action.worker for action in actions if isinstance(action, Drain)]


def test_the_first_worker_serves_beside_all_old_ones_until_it_is_accepted():
    bench, _ = on_trial(3)
    assert bench.plan.trial_ends == bench.plan.wake_at(bench.now) == bench.now + TRIAL
    assert bench.step() == []
    assert generations(bench) == [1, 1, 1, 2]
    bench.now += TRIAL
    bench.plan.accept()
    bench.serve()
    assert generations(bench) == [2, 2, 2]
    assert isinstance(bench.done[-1], Reloaded)
    # The others had no trial.
    assert bench.plan.trial_ends is None


def test_a_worker_that_is_rejected_ends_and_the_old_ones_stay():
    bench, new = on_trial()
    bench.plan.reject()
    assert drained(bench.step()) == [new]
    assert not bench.plan.is_reloading
    bench.dies(new)
    bench.serve()
    assert generations(bench) == [1, 1]
    assert not any(isinstance(action, Reloaded) for action in bench.done)
    # A worker that is replaced later stays, and the next reload is on trial again.
    bench.now += 5
    bench.dies(bench.worker(1))
    bench.serve()
    assert generations(bench) == [1, 3]
    bench.plan.reload(bench.now)
    assert bench.forks() == [2]
    bench.all_ready()
    assert bench.plan.trial_ends is not None
    assert generations(bench) == [1, 3, 4]


def test_no_worker_is_recycled_with_code_that_is_on_trial_or_was_rejected():
    bench, new = on_trial()
    old = bench.plan.serving[0]
    old.due = AGED
    assert (bench.plan.may_recycle, bench.step()) == (False, [])
    bench.plan.reject()
    assert drained(bench.step()) == [new]
    bench.dies(new)
    assert (bench.plan.may_recycle, bench.step()) == (False, [])
    # The old mold lives.
    bench.plan.keeps_rejected_code_out = False
    assert bench.forks() == [old.number]
    bench.all_ready()
    assert drained(bench.step()) == [old]
    bench.plan.reject()
    bench.plan.reload(bench.now)
    assert bench.plan.may_recycle


def test_figures_of_quick_applications_are_not_zero():
    quick, slow = Figures(100, 1, 0.000_012), Figures(2000, 0, 1.5)
    assert str(quick) == "100 responses, 1.0% of them 5xx, p95 0.012 ms"
    assert str(slow) == "2,000 responses, 0.0% of them 5xx, p95 1,500.0 ms"


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_a_worker_that_does_not_survive_its_trial_is_rejected(kind):
    bench, new = on_trial()
    if kind == "crash":
        assert bench.dies(new) is Verdict.RELOAD_FAILED
    else:
        assert bench.plan.hangs(new, bench.now)
    assert (bench.plan.trial_ends, bench.plan.is_reloading) == (None, False)
    assert bench.step() == []
    assert generations(bench) == [1, 1]


def test_an_old_worker_that_dies_or_hangs_does_not_end_the_trial():
    bench, new = on_trial()
    assert bench.dies(bench.plan.workers[0]) is Verdict.CRASHED
    assert not bench.plan.hangs(next(worker for worker in bench.plan.serving if worker is not new), bench.now)
    assert bench.plan.is_on_trial(new)
    # No old worker is left to go back to.
    assert bench.dies(new) is Verdict.CRASHED


def test_a_further_reload_ends_the_worker_on_trial():
    bench, new = on_trial()
    bench.plan.reload(bench.now)
    actions = bench.step()
    assert drained(actions) == [new]
    assert [action.generation for action in actions if isinstance(action, Fork)] == [3]
    bench.dies(new)
    bench.all_ready()
    assert generations(bench) == [1, 1, 3]
    bench.plan.reject()
    bench.step()
    assert generations(bench) == [1, 1]


def test_a_stop_ends_the_trial():
    bench, new = on_trial()
    assert new in bench.plan.stop(bench.now)
    assert bench.plan.trial_ends is None


def test_without_old_workers_or_after_a_change_of_files_there_is_no_trial():
    bench = Bench(1, trial=TRIAL).serve()
    bench.plan.restart(bench.now)
    bench.step()
    bench.all_ready()
    assert bench.plan.trial_ends is None
    bench = Bench(1, trial=TRIAL).serve()
    bench.plan.reload(bench.now)
    bench.dies(bench.worker(1))
    bench.step()
    bench.all_ready()
    assert bench.plan.trial_ends is None


def counts(responses=0, errors=0, seconds=0.001):
    """The counts of a worker after this number of responses, errors included."""
    application = {"sum_ns": 0, repr(seconds): responses} if responses else {"sum_ns": 0}
    return {"classes": {"none": 7, "2xx": responses - errors, "5xx": errors}, "application": application}


def judged(new, *old, began=(), is_over=True):
    trial = Trial(a_worker(generation=2), dict(enumerate(began)))
    return fault(*trial.figures(new, dict(enumerate(old))), is_over=is_over)


@pytest.mark.parametrize(
    ("new", "old", "said"),
    [
        (counts(50, 3), counts(1000), "has more errors"),
        (counts(50, 2), counts(1000), ""),
        # 1% are 10, whose deviation is 3.2.
        (counts(1000, 19), counts(1000), ""),
        (counts(1000, 20), counts(1000), "has more errors"),
        # 11% are 110, whose deviation is 10.5.
        (counts(1000, 141), counts(1000, 50), ""),
        (counts(1000, 142), counts(1000, 50), "has more errors"),
        # 11% are 2.2, whose deviation is 1.5.
        (counts(20, 6), counts(1000, 50), ""),
        (counts(20, 7), counts(1000, 50), "has more errors"),
        (counts(3, 3), counts(), "has more errors"),
        (counts(100, seconds=0.2), counts(100, seconds=0.1), ""),
        (counts(100, seconds=0.21), counts(100, seconds=0.1), "is slower"),
        (counts(99, seconds=0.21), counts(100, seconds=0.1), ""),
        (counts(100, seconds=0.21), counts(99, seconds=0.1), ""),
        (counts(), counts(1000), ""),
    ],
)
def test_the_bounds_are_those_of_the_manual(new, old, said):
    assert judged(new, old) == said


def test_errors_are_judged_before_the_end_and_times_are_not():
    assert judged(counts(50, 3), counts(1000), is_over=False) == "has more errors"
    assert judged(counts(500, seconds=1.0), counts(1000), is_over=False) == ""


def test_what_old_workers_did_before_the_trial_does_not_count():
    before = counts(1000, 500, seconds=2.0)
    now = added([before, counts(100, seconds=0.1)])
    # All old workers together: 200 responses in 0.1 s.
    assert judged(counts(100, 5, seconds=0.1), now, now, began=[before, before]) == "has more errors"
    assert judged(counts(100, seconds=0.3), now, now, began=[before, before]) == "is slower"
    assert judged(counts(100, 5, seconds=0.3), now, now) == ""


def test_five_percent_may_take_long():
    slow = list(itertools.repeat(counts(1, seconds=9.0), 5))
    assert judged(added([counts(95), *slow]), counts(100)) == ""
    assert judged(added([counts(94), *slow, counts(1, seconds=9.0)]), counts(100)) == "is slower"
