"""What `tools/release.py` checks: the version, the wheels and the source distribution."""
