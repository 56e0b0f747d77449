"""The command line. It may import all packages, and imports most of them when a command runs."""
