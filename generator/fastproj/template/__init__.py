"""What creating and updating share."""
