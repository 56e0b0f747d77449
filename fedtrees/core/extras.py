"""What to say where the modules of an extra are not installed."""

#: Of networks: the torch that is built for processors alone is small.
INSTALL_NEURAL = (
    "pip install 'fedtrees[neural]' --extra-index-url https://download.pytorch.org/whl/cpu"
)
