"""Image files of every layout that is read."""
