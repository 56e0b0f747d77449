"""How other parties' columns order rows, from how their splits sent them."""
