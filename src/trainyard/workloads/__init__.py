"""Workloads: models into Steps (capture), real zeros (masks), the zoo, and files of other tools (formats).

May import ir, results and parts. torch is imported only where a model is built or run. A new file format is one file in formats/.
"""
