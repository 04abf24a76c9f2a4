"""`--publish-bus`: servers that share what they publish, through Redis or PostgreSQL.

The holder numbers what is published on its server, and keeps it for a time. A process beside it, the bus process
(`process`), sends that over a service (`services`), and brings what other servers send, in the order of their numbers
(`order`). A number that is missing is asked for, so nothing is lost while the service, a connection or the bus process
is interrupted for as long as the other holder keeps it.
"""
