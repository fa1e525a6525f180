"""What each engine expects at load, as versioned tables."""
