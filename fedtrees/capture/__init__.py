"""What the parties of a real framework's run showed one another: recorded, decoded, attacked."""
