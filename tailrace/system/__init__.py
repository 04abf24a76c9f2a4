"""What a server asks of the operating system: descriptors, addresses, sockets, signals, user, processes."""
