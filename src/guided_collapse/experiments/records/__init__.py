"""What runs leave on disk: file names, format, writing whole, reading with checks. It imports no other room and no torch."""
