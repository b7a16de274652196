"""Tables, in every format."""
