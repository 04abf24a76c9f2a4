"""Tailrace inside another Python program: `tailrace.run`, `tailrace.serve_in_thread` and `tailrace.gevent.Server`.

Imports every other folder, but not the modules at the top of the package.
"""
