"""`python -m tailrace` is `tailrace`."""

from tailrace.command import main

main()
