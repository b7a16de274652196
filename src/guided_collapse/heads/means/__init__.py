"""What heads know of the classes: a batch, checked and summed over processes, and running means."""
