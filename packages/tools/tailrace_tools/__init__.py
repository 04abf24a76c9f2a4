"""The tools beside the server, which it does not need.

- `doctor`: `tailrace doctor`. `migrate`: `tailrace migrate`. `live`: `tailrace threads`, `top` and `trace`.
- `static_list`: `tailrace static list`. `timing`: the time of a request inside an application.
- `other_servers`: the options of other servers, for `migrate` and for the messages of `tailrace.cli.unknown`.
- `command`: their options on the command line.
"""
