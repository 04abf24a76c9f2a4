"""Programs that measure: each is run by hand, from this folder's parent."""
