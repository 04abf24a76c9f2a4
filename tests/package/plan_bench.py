"""A plan of the master whose forks succeed, for tests."""

from tailrace.master.plan import Fork, Plan
from tailrace.master.workers import Worker

GRACEFUL = 30.0


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
                self.plan.forked(Worker(action.number, action.place, action.generation, self.pids, self.now))
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

    def dies(self, worker):
        return self.plan.ended(worker, self.now)
