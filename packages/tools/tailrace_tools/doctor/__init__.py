"""`tailrace doctor`: asks an application for one response, measures its delivery, and says what to fix.

Imports `process`, `cli`, `worker` and `embed`.
"""
