"""Getting data sets, and telling whether they are the real ones."""
