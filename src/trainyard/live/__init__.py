"""What really runs in PyTorch: measured training steps, and the papers' mechanisms on real tensors.

torch is imported at the top of these files, so nothing outside this room imports them before it needs them. A new live mechanism
is one file here; it may import every room above except `report`.
"""
