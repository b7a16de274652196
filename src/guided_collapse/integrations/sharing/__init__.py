"""A classifier as files that others can load: weights, what they belong to, and a card; in a folder or on the Hugging Face hub."""
