"""Tailrace beside every WSGI server that pip can install, on this machine, in one run: `tailrace compare`.

- `main`: the command. `rounds`: the order of measurement. `scenarios`: what is measured.
- `peers`, `launch`, `nginx`, `machine`: the servers, their commands, their processes and their core.
- `checks`: whether answers are correct, read from the socket byte by byte.
- `wrk`, `curl`, `crowd`, `drain`, `flood`, `sleepers`, `streams`, `strace`: clients, each for one kind of load.
- `results`, `goals`, `report`, `chart`: the figures, and what is read from them.
- `served`: the applications.
"""
