"""What does a federated tree model leak, and what does a defense cost?"""

__version__ = "0.1.0"
