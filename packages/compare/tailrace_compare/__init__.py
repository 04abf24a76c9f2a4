"""Compares Tailrace with other WSGI servers on this machine: `tailrace compare`.

- `main`: the command. `rounds`: the order of measurement. `scenarios`: what is measured; `own`: of the user's
  application.
- `peers`, `launch`, `nginx`, `machine`: the servers, their commands, their processes and their core.
- `noise`, `resume`, `progress`: noise of the machine; continuation of interrupted runs; display of progress.
- `checks`: correctness of responses, read from the socket byte by byte.
- `load`: requests on some connections, by `wrk`; `work`: their load and their counts.
- `curl`, `crowd`, `drain`, `flood`, `sleepers`, `streams`, `strace`: clients, each for one kind of load.
- `results`, `goals`, `report`: the figures and their evaluation.
- `served`: the applications.
"""
