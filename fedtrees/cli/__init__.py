"""The command line. It may import everything, and does so when a command runs."""
