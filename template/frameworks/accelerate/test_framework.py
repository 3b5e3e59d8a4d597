"""What users of Accelerate expect of it."""
