"""The applications that every measured server runs, and the files that they deliver.

A server imports this folder by the name `served`, without the rest of Tailrace, so that it runs nothing of another
server: its modules import only each other and, where a framework is measured, that framework.
"""
