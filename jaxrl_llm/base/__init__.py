"""What every part may use, and what imports no other part."""
