"""What will happen, as plain data: built from a configuration, read by everyone after it."""
