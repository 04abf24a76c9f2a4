"""Tailrace beside the other WSGI servers, on this machine, in one run: `tailrace compare`.

- `main`: the command. `rounds`: the order of measurement. `scenarios`: what is measured; `own`: of the user's
  application.
- `peers`, `launch`, `nginx`, `machine`: the servers, their commands, their processes and their core.
- `noise`, `resume`, `progress`: whether the machine is quiet; an interrupted run, continued; what is shown meanwhile.
- `checks`: whether answers are correct, read from the socket byte by byte.
- `load`: requests on some connections, by `wrk` or `own_client`; `work`: what these do, and what they count.
- `curl`, `crowd`, `drain`, `flood`, `sleepers`, `streams`, `strace`: clients, each for one kind of load.
- `results`, `goals`, `report`: the figures, and what is read from them.
- `served`: the applications.
"""
