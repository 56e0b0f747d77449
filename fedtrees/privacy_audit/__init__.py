"""Audits of claimed epsilons: canaries for each protocol, and lower bounds from guesses about them.

`canaries` defines the interface, and one function that finds the canaries of a protocol. The other
modules contain the canaries of a family of protocols and register them there. `bounds` computes
lower bounds on epsilon from guesses (Steinke, Nasr and Jagielski 2023).
"""
