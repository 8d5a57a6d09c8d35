"""``holdfast demo``: a shop, a worker that is killed, another that takes over, and the count of what was lost."""
