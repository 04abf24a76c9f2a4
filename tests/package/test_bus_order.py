"""Which documents of other servers are delivered, and which are asked for."""

from tailrace.bus.order import AGAIN, GIVE_UP, MAX_SERVERS, SILENT, Order


def deliver(order, *arrivals, now=0.0):
    return [number for number in arrivals if order.document("a", number, now)]


def test_documents_are_delivered_in_the_order_of_their_numbers():
    order = Order({"a": 4}, 0.0)
    assert deliver(order, 5, 6, 6, 5) == [5, 6]
    assert deliver(order, 9, 8) == []
    assert order.due(0.0) == [("a", 7)]
    assert order.due(AGAIN / 2) == []
    assert order.due(AGAIN) == [("a", 7)]
    assert deliver(order, 5, 6, 7, 8, 9, 10) == [7, 8, 9, 10]
    assert order.due(100.0) == [] and order.lost == 0
    assert order.delivered == {"a": 10}


def test_documents_of_a_server_that_has_not_said_what_it_has_are_not_delivered():
    order = Order({}, 0.0)
    assert deliver(order, 1, 2) == []
    order.state("a", 2, 1, 0.0)
    assert deliver(order, 1, 2, 3) == [3]
    assert order.due(0.0) == [] and order.lost == 0


def test_what_nobody_sends_again_is_lost_after_a_time():
    order = Order({"a": 1}, 0.0)
    assert deliver(order, 3) == []
    assert order.due(GIVE_UP - 0.1) == [("a", 2)]
    assert order.due(GIVE_UP) == [] and order.lost == 2
    assert deliver(order, 2, 3, 4) == [4]


def test_the_time_counts_only_while_others_can_be_asked():
    order = Order({"a": 1}, 0.0)
    assert deliver(order, 3) == [] and order.due(0.0) == [("a", 2)]
    order.resume(10 * GIVE_UP)
    assert order.due(10 * GIVE_UP) == [("a", 2)] and order.lost == 0
    assert deliver(order, 2, 3, now=10 * GIVE_UP) == [2, 3]


def test_a_server_says_what_exists_and_what_it_has():
    order = Order({"a": 1}, 0.0)
    assert order.servers(0.0) == 0
    order.state("a", 4, 1, 0.0)
    assert order.servers(0.0) == 1 and order.servers(SILENT) == 0
    assert order.due(0.0) == [("a", 2)]
    # It has dropped those up to 3.
    order.state("a", 4, 4, 0.0)
    assert order.lost == 2 and deliver(order, 4) == [4] and order.due(100.0) == []
    # Of one that is new, nothing is missing.
    order.state("b", 9, 1, 0.0)
    assert order.due(0.0) == [] and order.document("b", 10, 0.0)
    # The last ones may be lost, too.
    order.state("b", 12, 1, 0.0)
    assert order.due(0.0) == [("b", 11)] and order.due(GIVE_UP) == [] and order.lost == 4


def test_of_too_many_servers_those_that_are_silent_are_forgotten():
    order = Order({"a": 1}, 0.0)
    for number in range(3 * MAX_SERVERS):
        now = number / 1000
        order.state("a", 1, 1, now)
        order.state(str(number), 1, 1, now)
        assert order.servers(now) <= MAX_SERVERS
    assert deliver(order, 2, now=now) == [2]


def test_what_comes_is_not_asked_for_again():
    order = Order({"a": 0}, 0.0)
    order.state("a", 100, 1, 0.0)
    assert order.due(0.0) == [("a", 1)]
    for number in range(1, 10):
        now = number * AGAIN * 0.9
        assert deliver(order, number, now=now) and order.due(now) == []
    assert order.due(now + AGAIN) == [("a", 10)]
