"""What `tools/check_structure.py` is made of: the import graph of the Rust sources, cycles in it, and permits."""
