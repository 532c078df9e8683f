"""What is installed on this machine, and what is missing."""
