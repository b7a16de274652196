"""Random changes of images, whole batches at a time, and normalisation."""
