"""Data: sources of images, augmentation on whole batches, stratified batches."""
