"""What is run, and where."""
