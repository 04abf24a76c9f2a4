"""Tailrace beside every WSGI server that pip can install, on this machine, in one run: `tailrace compare`.

- `main`: the command. `rounds`: the order of measurement. `scenarios`: what is measured.
- `peers`, `launch`, `nginx`, `machine`: the servers, their commands, their processes and their core.
- `wrk`, `curl`, `crowd`, `drain`, `flood`, `sleepers`, `streams`, `strace`: clients, each for one kind of load.
- `results`, `goals`, `report`: the figures, and what is read from them.
- `served`: the applications.
"""
