"""Running class means, the classifier heads, and the classifier that joins a backbone and a head."""
