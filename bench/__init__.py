"""The benchmark: Tailrace beside every WSGI server that pip can install, on this machine, in one run.

python -m bench --help
"""
