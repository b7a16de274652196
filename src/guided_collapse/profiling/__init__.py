"""What a training step costs: time and memory."""
