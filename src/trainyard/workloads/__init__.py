"""Workloads: what is trained, as Steps. In reading order:

- named: the Step that a user's text names (`resnet50`, `step.json`, `model.onnx`, `my.py:build`)
- capture/: one training step of a PyTorch model as a Step
- zoo/: published models, and their captured Steps
- formats/: files of other tools (ONNX, SCALE-Sim, Chakra, Timeloop); a new format is one file here
- recording, epochs: the zero masks of a real training run, and at which training steps they are recorded
- datasets/: samples to train on

May import ir, masks, results and hardware. torch is imported only where a model is built or run.
"""
