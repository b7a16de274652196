"""What a training step costs: time, memory, and what it asks of a device."""
