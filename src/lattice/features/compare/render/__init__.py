"""A comparison for people: words, a table, a plot; as commas; as one page of HTML. Pure."""
