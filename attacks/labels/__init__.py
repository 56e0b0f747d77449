"""Labels guessed from the record ids that a party of a vertical federation sees."""
