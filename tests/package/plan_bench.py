"""A plan of the master whose forks succeed, for tests."""

from tailrace.master.plan import Fork, Plan
from tailrace.master.recycle import Due, Reason
from tailrace.master.workers import Worker

GRACEFUL = 30.0
AGED = Due(Reason.MAX_LIFETIME, "has reached its lifetime")


def a_worker(number=1, place=0, generation=1, pid=100, forked=0.0, **fields):
    return Worker(pid, forked, number=number, place=place, generation=generation, **fields)


class Bench:
    """A plan whose forks succeed; the time is `now`."""

    def __init__(self, wanted, places=64, now=1000.0, trial=0.0):
        self.plan = Plan(wanted, places, GRACEFUL, trial)
        self.now = now
        self.pids = 0
        self.done = []

    def step(self):
        """Does what is to be done now; what that was."""
        actions = self.plan.next(self.now)
        for action in actions:
            if isinstance(action, Fork):
                self.pids += 1
                self.plan.forked(a_worker(action.number, action.place, action.generation, self.pids, self.now))
        self.done += actions
        return actions

    def forks(self):
        return [action.number for action in self.step() if isinstance(action, Fork)]

    def booting(self):
        return [worker for worker in self.plan.workers if worker.is_booting]

    def all_ready(self):
        for worker in self.booting():
            self.plan.ready(worker, self.now)

    def serve(self):
        """Until nothing is left to do."""
        while self.step() or self.booting():
            self.all_ready()
        return self

    def worker(self, number):
        return next(worker for worker in self.plan.serving if worker.number == number)

    def boot(self):
        self.step()
        return self.booting()

    def reload(self):
        self.plan.reload(self.now)
        return self

    def dies(self, worker, after=0):
        """`after`: seconds later."""
        self.now += after
        return self.plan.ended(worker, self.now)
