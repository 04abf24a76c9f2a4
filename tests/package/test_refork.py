from tailrace.master.refork import Refork
from tailrace.master.workers import Worker


def worker(number):
    return Worker(number, number, 0, 100 + number, 0.0)


def test_the_worker_with_the_most_requests_becomes_the_mold_at_each_count():
    one, two = worker(1), worker(2)
    refork = Refork((1000, 100))
    assert refork.choose([]) is None
    assert refork.choose([(one, 99), (two, 98)]) is None
    assert refork.choose([(one, 100), (two, 101)]) is two
    assert refork.choose([(one, 5000)]) is None, "one at a time"
    refork.worker = None
    assert refork.choose([(one, 999)]) is None, "the first count is passed"
    assert refork.choose([(one, 1000)]) is one
    refork.worker = None
    assert refork.choose([(one, 10**6)]) is None, "no count is left"
    refork.restart()
    assert refork.choose([(two, 100)]) is two, "new code begins with the first count"


def test_without_counts_no_worker_becomes_the_mold():
    assert Refork(()).choose([(worker(1), 10**9)]) is None
