"""What there is: heads and metrics, each declared once, and the quantities that are shown."""
