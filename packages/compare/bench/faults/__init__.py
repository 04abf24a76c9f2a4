"""What clients notice of faults: each module measures one, in at most a minute.

python -m bench.faults.NAME
"""
