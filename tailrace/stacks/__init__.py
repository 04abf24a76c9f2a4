"""Threads of a process: their Python stacks, by py-spy, and what the kernel says of them."""
