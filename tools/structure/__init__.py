"""What `tools/check_structure.py` is made of: import graphs of Rust and Python sources, cycles in them, and permits."""
